"""The named optimizers: each only picks parts.

Where the table names no other, the decay is `Decoupled` or `Coupled`, and the iterate is `Last`.

    optimizer          filter              geometry            correction
    SGDM               HeavyBall           Euclidean           Direct
    Nesterov           HeavyBall           Euclidean           FixedPoint
    Adam, AdamW        EMA                 Adaptive            Direct
    NAdam              ScheduledNesterov   Adaptive            Direct      torch's, with scheduled μ
    ConstantNAdam      EMA                 Adaptive            FixedPoint  the paper's, with constant β1
    QHAdam             QuasiHyperbolic     Adaptive            Direct
    Adan               AdanPair            Adaptive            Direct
    AdaBelief          EMA                 Belief              Direct
    AdEMAMix           TwoSpeed            Adaptive            Direct
    MARS               VarianceReduced     Adaptive            Direct      its geometry sees the corrected gradient
    CautiousAdamW      EMA                 Adaptive            Cautious    around Direct
    LAMB               EMA                 Adaptive            Direct      decay TrustRatio
    ScheduleFreeAdamW  Unfiltered          Adaptive            Direct      iterate ScheduleFree
    RAD                EMA                 Relativistic        Direct
    RADAR              GradientDifference  Relativistic        FixedPoint
    Lion               Lookback            Sign                Direct
    AcceleratedLion    Lookback            Sign                FixedPoint  open in the paper
    Muon               HeavyBall           Spectral            MixThenMap  Direct without Nesterov momentum
    AcceleratedMuon    HeavyBall           Spectral            FixedPoint  open in the paper
    NorMuon            HeavyBall           NormalizedSpectral  MixThenMap
    SOAP               EMA                 Eigenbasis          Direct

`create("radar", model, lr=1e-3)` builds one by name; all take the keywords of `Keywords` as well.
`create("hybrid", model, lr=1e-3)` is Muon on hidden matrices and RADAR on the rest (`hybrid.py`).
`create("AIM", model, lr=1e-3, filter="EMA(0.9)", geometry="Sign()")` is a composition of parts that texts name.
"""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM
from aimopt.messages.spelling import suggestion
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
from aimopt.optimizers.hybrid import hybrid
from aimopt.optimizers.relativistic import RAD, RADAR
from aimopt.optimizers.sign import AcceleratedLion, Lion
from aimopt.optimizers.spectral import SOAP, AcceleratedMuon, Muon, NorMuon

NAMED: tuple[type[AIM], ...] = (
    RADAR,
    RAD,
    SGDM,
    Nesterov,
    Adam,
    AdamW,
    NAdam,
    ConstantNAdam,
    QHAdam,
    Adan,
    AdaBelief,
    LAMB,
    ScheduleFreeAdamW,
    AdEMAMix,
    MARS,
    CautiousAdamW,
    Lion,
    Muon,
    AcceleratedLion,
    AcceleratedMuon,
    NorMuon,
    SOAP,
)


def available() -> list[str]:
    """The names that `create` accepts, besides "hybrid", which is two of them, and "AIM", which needs its parts."""
    return [optimizer.__name__ for optimizer in NAMED]


def create(name: str, model_or_params: torch.nn.Module | ParamsT, **hyperparameters: Any) -> AIM:
    """Build an optimizer by its name, in upper or lower case: `create("radar", model, lr=1e-3)`.

    A model means its trainable parameters, with their names. "hybrid" needs a model; `hybrid` says what it takes. Its
    `matrices` and `rest` may be names.
    """
    if not isinstance(name, str):
        hint = f"; call {name.__name__}(…) itself, or pass its name" if isinstance(name, type) else ""
        raise ValueError(f"create: the name of an optimizer must be a text such as 'radar', got {name!r}{hint}")
    if _key(name) == "hybrid":
        for side in ("matrices", "rest"):
            if isinstance(named := hyperparameters.get(side), str):
                hyperparameters[side] = class_of(named)
        return hybrid(model_or_params, **hyperparameters)  # type: ignore[arg-type]
    params = model_or_params
    if isinstance(params, torch.nn.Module):
        params = [(n, p) for n, p in params.named_parameters() if p.requires_grad]
    optimizer: Any = class_of(name)
    return optimizer(params, **hyperparameters)


def class_of(name: str) -> type[AIM]:
    """The optimizer with this name, in upper or lower case."""
    by_key = {_key(optimizer.__name__): optimizer for optimizer in (*NAMED, AIM)}
    if _key(name) not in by_key:
        raise ValueError(f"no optimizer is called {name!r}; {suggestion(name, available())}")
    return by_key[_key(name)]


def _key(name: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"an optimizer is named by a text, such as 'radar', got {name!r}")
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
