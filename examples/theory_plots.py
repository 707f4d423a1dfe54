"""Render the plots of docs/theory.md: `python examples/theory_plots.py`, after `pip install '.[theory]'`."""

from pathlib import Path

import torch

import aimopt
from aimopt import theory
from aimopt.theory import plots
from aimopt.theory.trajectories import PROBLEMS, trajectories

FOLDER = Path(__file__).parent.parent / "docs" / "images"
OPTIMIZERS = ("RADAR", "AdamW", "ConstantNAdam", "Adan", "Lion")


def main() -> None:
    params = [torch.zeros(2, 2, requires_grad=True)]
    certificate = theory.certificate(L=1, sigma2=0.1, nu_min=0.5, nu_max=1, lr=5e-3, ell=5e-5)
    figures = {
        "response": plots.response({name: aimopt.create(name, params) for name in OPTIMIZERS}),
        "stability": plots.stability(),
        "certificate": plots.certificate(certificate, V0=1.0, batch=32),
        "valley": plots.paths(trajectories(PROBLEMS["valley"])),
    }
    for name, figure in figures.items():
        print(plots.save(figure, FOLDER / f"{name}.png"))
    print(plots.animate(trajectories(PROBLEMS["rosenbrock"]), FOLDER / "rosenbrock.gif"))


if __name__ == "__main__":
    main()
