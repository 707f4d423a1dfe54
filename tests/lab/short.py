"""Runs of a few steps on real data."""

from typing import Any

from aimopt.lab.config import RunConfig
from aimopt.lab.runs import Run
from aimopt.lab.study import Study, compare

SHORT = {"steps": 12, "search_steps": 6, "evaluate_every": 2, "log_every": 2, "warmup_steps": 2}


def short_run(**changes: Any) -> RunConfig:
    """Twelve steps on digits."""
    settings = {**SHORT, **changes.pop("settings", {})}
    return RunConfig.of("digits", "demo", **{"optimizer": "RADAR", "settings": settings, **changes})


def short_study(*optimizers: str, **changes: Any) -> Study:
    """Two learning rates and two seeds on digits."""
    settings = {**SHORT, **changes.pop("settings", {})}
    chosen = {"grid": (0.5, 1.0), "seeds": (0, 1), "settings": settings, **changes}
    return compare("digits", "demo", optimizers=optimizers or ("RADAR", "AdamW"), **chosen)


def curves(run: Run | None) -> list[dict[str, float]]:
    """A run's records without the time they took."""
    assert run is not None
    return [{name: value for name, value in record.items() if name != "seconds"} for record in run.history]
