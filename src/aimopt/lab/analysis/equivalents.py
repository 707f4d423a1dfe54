"""Differences in steps: how much longer the reference would have to train, from its runs at other lengths.

    equivalents(measure, final_runs, "Other", store.runs())["Mine"].saved       0.25 [0.17, 0.32]: 25 % fewer steps

`lab/protocol/lengths.py` makes such runs. Without them there is nothing to compare with, and the result is empty.
"""

from collections.abc import Mapping

from aimopt.lab.protocol.lengths import companion_runs
from aimopt.lab.protocol.task import Measure
from aimopt.lab.results.run import Run
from aimopt.lab.stats.equivalent_steps import EquivalentSteps, equivalent_steps


def equivalents(
    measure: Measure, finals: Mapping[str, Mapping[int, Run]], reference: str, runs: Mapping[str, Run]
) -> dict[str, EquivalentSteps]:
    """For every contender except the reference. `finals` are the final runs, `runs` all runs of the store."""
    values = {
        label: {seed: run.final(measure) for seed, run in by_seed.items() if run.settled}
        for label, by_seed in finals.items()
    }
    if not values[reference]:
        return {}
    config = next(iter(finals[reference].values())).config
    by_length = {
        length: {seed: run.final(measure) for seed, run in by_seed.items()}
        for length, by_seed in companion_runs(config, runs).items()
    }
    by_length[config.steps] = values[reference]  # the seeds that the tables show
    found = {
        label: equivalent_steps(by_length, by_seed, config.steps, measure.better)
        for label, by_seed in values.items()
        if label != reference
    }
    return {label: known for label, known in found.items() if known is not None}
