"""The other studies of the paper, for any task. They are registered under the entry point group `aimopt.presets`.

ablation("digits", "demo")         RADAR without γ, without ℓ, and without both (RAD)
heatmap("digits", "demo")          ℓ × γ
delta("digits"), zeta("digits")    values of one option
table1("digits", "demo")           every cell of the paper's first table: geometry × correction
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from aimopt.lab.defaults import SCALE
from aimopt.lab.protocol.optimizers import canonical
from aimopt.lab.protocol.recipes import make_study, sensitivity
from aimopt.lab.protocol.run_config import rounded
from aimopt.lab.protocol.study import Contender, Study
from aimopt.lab.protocol.tasks import entry
from aimopt.paper.protocols import SYMBOLS

# ℓ in units of the learning rate.
HEAT_MAP = {"ell_ratio": (1e-4, 1e-3, 1e-2, 1e-1, 1.0), "gamma": (0.0, 0.05, 0.1, 0.2, 0.4)}
DELTA = {"delta": (0.8, 0.9, 1.0, 1.1, 1.2)}
ZETA = {"zeta": (1e-18, 1e-17, 1e-16, 1e-15, 1e-14)}
# Table 1 of the paper: the rows are residual geometries, each with the filter of its best-known optimizer, and the
# factor on the task's learning rate; the columns are approximations of the θ-step, two of them for the paper's
# "alternative approximations". The direct cells are SGD-M, AdamW, Muon and Lion; the cells of one fixed-point step are
# Nesterov, NAdam with constant β1, and the two accelerated ones. Spectral rows are hybrids, with AdamW for the rest.
GEOMETRIES: Mapping[str, tuple[str, str, float]] = {
    "Euclidean": ("HeavyBall(0.9)", "Euclidean()", 10.0),
    "weighted": ("EMA(0.9)", "Adaptive(0.999)", 1.0),
    "spectral": (
        "HeavyBall(0.95, normalized=True)",
        "Spectral(adjust_lr_fn='match_rms_adamw')",
        1.0,
    ),
    "infinity": ("Lookback(0.9, 0.99)", "Sign()", 0.1),
}
CORRECTIONS: Mapping[str, str] = {
    "direct": "Direct()",
    "one step": "FixedPoint()",
    "K = 2": "FixedPoint(iterations=2)",
    "secant": "Secant()",
}
Preset = Callable[..., Study]


def ablation(task: str, scale: str = SCALE, *, optimizer: str = "RADAR", **fields: Any) -> Study:
    """RADAR without its gradient difference, without its residual correction, and without both (RAD)."""
    if canonical(optimizer) != "RADAR":
        raise ValueError(
            f"the preset ablation varies RADAR, not {optimizer}; leave the optimizer out, "
            "or name the options to vary: --over weight_decay=0,0.1"
        )
    removed = {
        "RADAR": {},
        "γ = 0": {"gamma": 0.0},
        "ℓ = 0": {"ell_ratio": 0.0},
        "γ = ℓ = 0": {"gamma": 0.0, "ell_ratio": 0.0},
    }
    contenders = [Contender(label=label, optimizer="RADAR", options=options) for label, options in removed.items()]
    options, protocol = fields.pop("options", {}), fields.pop("protocol", None) or entry(task).protocol(scale)
    chosen = {"name": "ablation", "reference": "RADAR", "rate_of": "RADAR", **fields}
    return make_study(task, scale, contenders, protocol, options, chosen)


def table1(task: str, scale: str = SCALE, **fields: Any) -> Study:
    """Table 1 of the paper: every geometry with every correction, each cell at the learning rate of its own search."""
    if "optimizer" in fields:
        raise ValueError("the preset table1 compares compositions, not one optimizer; leave the optimizer out")
    options, protocol = fields.pop("options", {}), fields.pop("protocol", None) or entry(task).protocol(scale)
    task_lr = entry(task).task.at_scale(scale, fields.get("settings")).lr
    usual_decay = protocol.options("AIM").get("weight_decay", 0.0)

    def decay(factor: float) -> dict[str, float]:
        """The weight decay is the same per step, η·λ, at the usual rates."""
        return {} if "weight_decay" in options else {"weight_decay": rounded(usual_decay / factor)}

    contenders = [
        Contender(
            label=f"{row} + {column}",
            optimizer="AIM",
            options={"filter": filter, "geometry": geometry, "correction": correction, **decay(factor)},
            lr=rounded(task_lr * factor),
        )
        for row, (filter, geometry, factor) in GEOMETRIES.items()
        for column, correction in CORRECTIONS.items()
    ]
    chosen = {"name": "table1", "subject": "weighted + one step", "reference": "weighted + direct", **fields}
    return make_study(task, scale, contenders, protocol, options, chosen)


def _over(axes: Mapping[str, tuple[float, ...]], task: str, scale: str = SCALE, **fields: Any) -> Study:
    return sensitivity(task, scale, axes, **{"optimizer": "RADAR", "symbols": SYMBOLS, **fields})


heatmap: Preset = partial(_over, HEAT_MAP)
delta: Preset = partial(_over, DELTA)
zeta: Preset = partial(_over, ZETA)
