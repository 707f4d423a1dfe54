"""aimopt: an optimizer is three choices — a momentum filter, a residual geometry and a θ-step correction.

`aimopt.RADAR` is the flagship, `aimopt.AIM` composes any other; `aimopt.available()` lists the named ones.
"""

from aimopt import groups
from aimopt.aim import AIM
from aimopt.corrections import Direct, ExactQuadratic, FixedPoint, MixThenMap, Secant
from aimopt.diagnostics import Diagnostics, log_to, watch
from aimopt.filters import EMA, AdanPair, GradientDifference, HeavyBall, Lookback, QuasiHyperbolic, ScheduledNesterov
from aimopt.geometries import Adaptive, Belief, Euclidean, Relativistic, Sign, Spectral
from aimopt.optimizers import NAMED, available, create
from aimopt.optimizers.adaptive import AdaBelief, Adam, AdamW, Adan, ConstantNAdam, NAdam, QHAdam
from aimopt.optimizers.euclidean import SGDM, Nesterov
from aimopt.optimizers.relativistic import RAD, RADAR
from aimopt.optimizers.sign import AcceleratedLion, Lion
from aimopt.optimizers.spectral import AcceleratedMuon, Muon

__version__ = "0.1.0"

__all__ = [
    "AIM",
    "EMA",
    "NAMED",
    "RAD",
    "RADAR",
    "SGDM",
    "AcceleratedLion",
    "AcceleratedMuon",
    "AdaBelief",
    "Adam",
    "AdamW",
    "Adan",
    "AdanPair",
    "Adaptive",
    "Belief",
    "ConstantNAdam",
    "Diagnostics",
    "Direct",
    "Euclidean",
    "ExactQuadratic",
    "FixedPoint",
    "GradientDifference",
    "HeavyBall",
    "Lion",
    "Lookback",
    "MixThenMap",
    "Muon",
    "NAdam",
    "Nesterov",
    "QHAdam",
    "QuasiHyperbolic",
    "Relativistic",
    "ScheduledNesterov",
    "Secant",
    "Sign",
    "Spectral",
    "available",
    "create",
    "groups",
    "log_to",
    "watch",
]
