"""The statistics of a comparison of optimizers. Numbers go in; numbers and verdicts come out.

    values.py      which direction is better; a diverged run counts as the worst value and is never dropped
    paired.py      within one task: the spread of one contender, and its paired difference from a reference
    ranking.py     across tasks: average ranks and performance profiles
    bootstrap.py   across tasks, as in reinforcement learning: interquartile mean, probability of improvement
    targets.py     the step at which a curve reaches a target
    tuning.py      the best learning rate of a search
    tuning_budget.py    what a search would have found with fewer trials

    paired_differences({"Mine": losses, "Other": others}, reference="Other", better="lower")["Mine"].verdict

Nothing here imports another part of the lab.
"""
