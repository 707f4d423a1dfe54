"""The statistics of a comparison of optimizers. Numbers go in; numbers and verdicts come out.

    values.py              which direction is better; a diverged run counts as the worst value and is never dropped
    paired.py              within one task: the spread of one contender, and its paired difference from a reference
    sequential.py          within one task, with seeds in blocks: the verdicts of a study with looks
    pooled.py              across tasks: one test over all pairs of task and seed
    ranking.py             across tasks: average ranks and performance profiles
    ranking_intervals.py   the same with intervals
    bootstrap.py           across tasks, as in reinforcement learning: interquartile mean, probability of improvement
    seed_resampling.py     means over seeds in resamples of the seeds, which intervals are made from
    targets.py             the step at which a curve reaches a target, with its interval
    equivalent_steps.py    how long the reference must train to end where a contender ends
    example_noise.py       how much a result would change with other test examples
    tuning.py              the search: its points, and which one it chooses
    tuning_budget.py       what a search would have found with fewer trials

    paired_differences({"Mine": losses, "Other": others}, reference="Other", better="lower")["Mine"].verdict

Nothing here imports another part of the lab.
"""
