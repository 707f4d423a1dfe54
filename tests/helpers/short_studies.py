"""Runs of a few steps on real data."""

from typing import Any

from aimopt.lab.execution.runner import train_run
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store

SEARCH_STEPS = 6
SHORT = {"steps": 12, "evaluate_every": 2, "log_every": 2, "warmup_steps": 2}


def short_run(**changes: Any) -> RunConfig:
    """Twelve steps on digits."""
    settings = {**SHORT, **changes.pop("settings", {})}
    return RunConfig.create("digits", "demo", **{"optimizer": "RADAR", "settings": settings, **changes})


def short_study(*optimizers: str, **changes: Any) -> Study:
    """Two learning rates and two seeds on digits."""
    settings = {**SHORT, **changes.pop("settings", {})}
    chosen = {"grid": (0.5, 1.0), "seeds": (0, 1), "search_steps": SEARCH_STEPS, "settings": settings, **changes}
    return compare("digits", "demo", optimizers=optimizers or ("RADAR", "AdamW"), **chosen)


def curves(run: Run | None) -> list[dict[str, float]]:
    """A run's records without the time they took."""
    assert run is not None
    return [{name: value for name, value in record.items() if name != "seconds"} for record in run.history]


def stopped_half_way(store: Store, **changes: Any) -> RunConfig:
    """Twelve steps on digits that were stopped after six, with a checkpoint."""
    config, asked = short_run(**changes), iter([False] * 6 + [True])
    assert train_run(config, store, should_stop=lambda: next(asked)) == "stopped"
    return config
