"""aimopt: an optimizer is a few choices: filter, geometry and correction of a step, then decay and iterate.

`aimopt.RADAR` is the flagship, `aimopt.AIM` composes any other; `aimopt.available()` lists the named ones.

torch takes seconds to import. So the names below are imported when the first of them is used: `aimopt --help` and
Ctrl-C during the start do not wait for it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aimopt import groups
    from aimopt.aim import AIM
    from aimopt.backward import InBackward, in_backward
    from aimopt.diagnostics import Diagnostics, log_to, watch
    from aimopt.optimizers import available, create
    from aimopt.optimizers.adaptive import (
        LAMB,
        MARS,
        AdaBelief,
        Adam,
        AdamW,
        Adan,
        AdEMAMix,
        CautiousAdamW,
        ConstantNAdam,
        NAdam,
        QHAdam,
        ScheduleFreeAdamW,
    )
    from aimopt.optimizers.euclidean import SGDM, Nesterov
    from aimopt.optimizers.relativistic import RAD, RADAR
    from aimopt.optimizers.sign import AcceleratedLion, Lion
    from aimopt.optimizers.spectral import SOAP, AcceleratedMuon, Muon, NorMuon
    from aimopt.parts.corrections import Cautious, Direct, ExactQuadratic, FixedPoint, MixThenMap, Secant
    from aimopt.parts.decays import (
        CautiousDecay,
        Corrected,
        Coupled,
        Decoupled,
        Independent,
        Proximal,
        Sphere,
        TrustRatio,
    )
    from aimopt.parts.filters import (
        EMA,
        AdanPair,
        GradientDifference,
        HeavyBall,
        Lookback,
        QuasiHyperbolic,
        ScheduledNesterov,
        TwoSpeed,
        Unfiltered,
        VarianceReduced,
    )
    from aimopt.parts.geometries import Adaptive, Belief, Euclidean, Relativistic, Sign
    from aimopt.parts.iterates import Average, Last, Lookahead, ScheduleFree
    from aimopt.parts.matrices import Eigenbasis, NormalizedSpectral, Spectral

__version__ = "0.1.0"

__all__ = [
    "AIM",
    "EMA",
    "LAMB",
    "MARS",
    "RAD",
    "RADAR",
    "SGDM",
    "SOAP",
    "AcceleratedLion",
    "AcceleratedMuon",
    "AdEMAMix",
    "AdaBelief",
    "Adam",
    "AdamW",
    "Adan",
    "AdanPair",
    "Adaptive",
    "Average",
    "Belief",
    "Cautious",
    "CautiousAdamW",
    "CautiousDecay",
    "ConstantNAdam",
    "Corrected",
    "Coupled",
    "Decoupled",
    "Diagnostics",
    "Direct",
    "Eigenbasis",
    "Euclidean",
    "ExactQuadratic",
    "FixedPoint",
    "GradientDifference",
    "HeavyBall",
    "InBackward",
    "Independent",
    "Last",
    "Lion",
    "Lookahead",
    "Lookback",
    "MixThenMap",
    "Muon",
    "NAdam",
    "Nesterov",
    "NorMuon",
    "NormalizedSpectral",
    "Proximal",
    "QHAdam",
    "QuasiHyperbolic",
    "Relativistic",
    "ScheduleFree",
    "ScheduleFreeAdamW",
    "ScheduledNesterov",
    "Secant",
    "Sign",
    "Spectral",
    "Sphere",
    "TrustRatio",
    "TwoSpeed",
    "Unfiltered",
    "VarianceReduced",
    "available",
    "create",
    "groups",
    "in_backward",
    "log_to",
    "watch",
]

# The modules that define the names of __all__.
_MODULES = (
    "aim",
    "backward",
    "diagnostics",
    "groups",
    "optimizers",
    "parts.corrections",
    "parts.decays",
    "parts.filters",
    "parts.geometries",
    "parts.iterates",
    "parts.matrices",
)

if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name in __all__:
            modules = [import_module(f"{__name__}.{module}") for module in _MODULES]
            globals().update({n: getattr(module, n) for module in modules for n in __all__ if hasattr(module, n)})
            return globals()[name]
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")  # aimopt.kernels, aimopt.theory, …
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
