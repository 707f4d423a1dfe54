"""An exploration: many contenders on one task, by successive halving. It suggests what to compare, and proves nothing.

    exploration = Exploration.of("spirals", optimizers=["Mine", "Mine(beta=0.5)", "torch.optim:AdamW"])
    exploration.cells({})                     the runs of the first rung: every contender at every rate, with one seed

The scheduler asks it, as it asks a study, which runs come next. `lab/stats/halving.py` states the rule. Its seeds are
those of no comparison, so that a comparison can confirm what it found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aimopt.lab.defaults import RATES, RUNGS, SCALE
from aimopt.lab.protocol import tasks
from aimopt.lab.protocol.protocol import Protocol
from aimopt.lab.protocol.recipes import make_study
from aimopt.lab.protocol.run_config import RunConfig, rounded
from aimopt.lab.protocol.schedule import Cell, Runs, trial_score
from aimopt.lab.protocol.search import MAX_TRIALS
from aimopt.lab.protocol.study import Contender, Study, check_rates
from aimopt.lab.stats.halving import Rung, plan_rungs, third
from aimopt.lab.stats.tuning import Point

FIRST_SEED = 2001  # comparisons have seeds from 0, and tuning seeds below this one


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Contenders at the rates of a grid, and the number of seeds per rung. The reference reaches the last rung."""

    study: Study  # its seeds are those of the last rung
    rungs: tuple[int, ...]

    @classmethod
    def of(
        cls,
        task: str,
        scale: str = SCALE,
        *,
        optimizers: Sequence[str] = (),
        rates: Sequence[float] = RATES,
        rungs: Sequence[int] = RUNGS,
        reference: str | None = None,
        protocol: Protocol | None = None,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """An exploration; the protocol supplies what is not given here. `rates` are in units of the usual rate."""
        if not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
            raise ValueError(f"the numbers of seeds per rung must grow from at least 1, got {tuple(rungs)}")
        if rungs[-1] > MAX_TRIALS:
            raise ValueError(f"a rung may have {MAX_TRIALS} seeds at most, got {rungs[-1]}; give smaller numbers")
        check_rates("rates", tuple(rates))
        protocol = (tasks.entry(task).protocol(scale) if protocol is None else protocol).fixed()
        names = optimizers or protocol.explored or protocol.optimizers
        if not names:
            raise ValueError(f"name the optimizers to explore on {task}: its protocol has none")
        given = [Contender.named(name) for name in ([*names, reference] if reference else names)]
        contenders = {contender.label: contender for contender in given}
        usual = protocol.reference if protocol.reference in contenders else given[-1].label
        fields = {
            "name": "explore",
            "reference": given[-1].label if reference else usual,
            "grid": tuple(sorted(map(float, rates))),
            "seeds": tuple(range(FIRST_SEED, FIRST_SEED + rungs[-1])),
            "search_steps": tasks.find(task).at_scale(scale, settings).steps,
            **({"settings": settings} if settings else {}),
        }
        study = make_study(task, scale, [*contenders.values()], protocol, options or {}, fields)
        return cls(study=study, rungs=tuple(rungs))

    def plan(self, runs: Runs) -> list[Rung]:
        """The rungs that the runs so far decide."""
        study = self.study
        score = {c.label: trial_score(study, c, runs) for c in study.contenders}
        return plan_rungs(
            {c.label: [rounded(study.usual_rate(c) * factor) for factor in study.grid] for c in study.contenders},
            study.seeds,
            self.rungs,
            lambda label, rate, seed: score[label](Point(rate), seed),
            study.facts.score.better,
            keep=(study.reference,),
        )

    def config(self, label: str, rate: float, seed: int) -> RunConfig:
        """The config of a trial."""
        return self.study.run_config(self.study.contender(label), Point(rate), seed, self.study.search_steps)

    def cells(self, runs: Runs) -> list[Cell]:
        """Every run with a known config; a point that is on two rungs has its runs once."""
        points = {
            (e.candidate, e.rate, seed): None for rung in self.plan(runs) for e in rung.entries for seed in rung.seeds
        }
        return [Cell(label, "search", self.config(label, rate, seed)) for label, rate, seed in points]

    def count_unknown_runs(self, runs: Runs) -> int:
        """How many more runs the later rungs have, at most."""
        plan = self.plan(runs)
        candidates = len({entry.candidate for entry in plan[-1].entries})
        rates = -(-len(plan[-1].entries) // candidates)
        count = 0
        for earlier, seeds in zip(self.rungs[len(plan) - 1 :], self.rungs[len(plan) :], strict=False):
            candidates, rates = min(candidates, third(candidates) + 1), third(rates)  # and the reference
            count += candidates * rates * (seeds - earlier)
        return count
