"""Render the pictures of docs/theory.md anew: `python examples/pictures.py`, with `aimopt[theory]` installed."""

from pathlib import Path

import torch

import aimopt
from aimopt import theory
from aimopt.theory import pictures
from aimopt.theory.trajectories import PROBLEMS, trajectories

FOLDER = Path(__file__).parent.parent / "docs" / "images"
OPTIMIZERS = ("RADAR", "AdamW", "ConstantNAdam", "Adan", "Lion")


def main() -> None:
    some = [torch.zeros(2, 2, requires_grad=True)]
    certificate = theory.certificate(L=1, sigma2=0.1, nu_min=0.5, nu_max=1, lr=5e-3, ell=5e-5)
    figures = {
        "response": pictures.response({name: aimopt.create(name, some) for name in OPTIMIZERS}),
        "stability": pictures.stability(),
        "certificate": pictures.certificate(certificate, V0=1.0, batch=32),
        "valley": pictures.paths(trajectories(PROBLEMS["valley"])),
    }
    for name, figure in figures.items():
        print(pictures.save(figure, FOLDER / f"{name}.png"))
    print(pictures.animate(trajectories(PROBLEMS["rosenbrock"]), FOLDER / "rosenbrock.gif"))


if __name__ == "__main__":
    main()
