"""How the paper compares optimizers in each of its settings; what it leaves open is decided here, with the reason.

Weight decay: 5e-5 on images, as in the paper. For language the paper gives no value. Its Adam and AdamW end within
0.0003 of each other in fine-tuning, which is unlikely if a decay is added to Adam's gradients. So the weight decay is 0
here, the default of Hugging Face's `Trainer`; the paper uses the terms of that class. Adam and AdamW are then the same
rule. In SAC it is 0 too: weight decay would pull the temperature to 1.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aimopt.lab.protocol.optimizers import resolved
from aimopt.lab.protocol.protocol import Protocol, PublishedTable, same_options
from aimopt.paper.published import PUBLISHED
from aimopt.paper.tasks.vision import EPOCH

OPTIMIZERS = ("RADAR", "RAD", "Adam", "AdamW", "NAdam", "Adan", "AdaBelief", "Lion")
# γ of RADAR in some settings; in the paper's other settings γ is 0.1, the default.
SMALL_GAMMA = 0.01

# The paper's symbols for options of RADAR, for tables and figures.
SYMBOLS = {"gamma": "γ", "ell_ratio": "ℓ/η", "ell": "ℓ", "delta": "δ", "zeta": "ζ"}

PROTOCOL = Protocol(
    optimizers=OPTIMIZERS,
    subject="RADAR",
    reference="AdamW",
    lr_factors={"Adan": 2.5, "Lion": 0.1, "AcceleratedLion": 0.1},
    symbols=SYMBOLS,
)


def fineweb_options(optimizer: str) -> Mapping[str, Any]:
    """All optimizers get β₂ = 0.95, as the last of their betas."""
    options: dict[str, Any] = {"weight_decay": 0.0, "gamma": SMALL_GAMMA}
    if betas := resolved(optimizer, {}, {}).get("betas"):
        options["betas"] = (*betas[:-1], 0.95)
    return options


_IMAGES = replace(PROTOCOL, options=same_options(weight_decay=5e-5))
_LANGUAGE = replace(PROTOCOL, options=same_options(weight_decay=0.0))
_FINEWEB = replace(PROTOCOL, options=fineweb_options)
# The paper does not search the learning rate in SAC.
_SAC = replace(PROTOCOL, options=same_options(weight_decay=0.0, gamma=SMALL_GAMMA), grid=(1.0,))


def _search_steps(protocol: Protocol, task: str, **by_scale: int) -> dict[str, Protocol]:
    """One protocol per scale, with this length of its search runs."""
    results = PUBLISHED.get(task)
    published = PublishedTable(source="the paper", scale="paper", results=results) if results else None
    return {scale: replace(protocol, search_steps=n, published=published) for scale, n in by_scale.items()}


# The paper does not give the search length on FineWeb-Edu; 300 steps are the minimum for three evaluations.
PROTOCOLS: Mapping[str, Mapping[str, Protocol]] = {
    "digits": _search_steps(_IMAGES, "digits", demo=140, mini=1400),
    "cifar10-vit": _search_steps(_IMAGES, "cifar10-vit", paper=10 * EPOCH, mini=450),
    "cifar100-resnet50": _search_steps(_IMAGES, "cifar100-resnet50", paper=10 * EPOCH, mini=250),
    "wikitext103-gpt2": _search_steps(_LANGUAGE, "wikitext103-gpt2", paper=1000, mini=150),
    "fineweb-qwen": _search_steps(_FINEWEB, "fineweb-qwen", paper=300, mini=175),
    "wikitext2-finetune": _search_steps(_LANGUAGE, "wikitext2-finetune", paper=72, mini=30),
    "halfcheetah-sac": {
        **_search_steps(_SAC, "halfcheetah-sac", mini=4000),
        **_search_steps(replace(_SAC, seeds=tuple(range(10))), "halfcheetah-sac", paper=100_000),
    },
    "walker2d-sac": {
        **_search_steps(_SAC, "walker2d-sac", mini=4000),
        **_search_steps(replace(_SAC, seeds=tuple(range(10))), "walker2d-sac", paper=100_000),
    },
    "pendulum-sac": _search_steps(_SAC, "pendulum-sac", mini=2500),
}
