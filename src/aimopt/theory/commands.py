"""The theory on the command line: each command prints a table and writes a picture.

    aimopt response radar adamw lion                                      response.png
    aimopt certify --L 1 --sigma2 0.1 --nu-min 0.5 --lr 5e-3              certificate.png
    aimopt trajectories rosenbrock                                        rosenbrock.gif

What they need beyond torch is imported when they run.
"""

import argparse
import inspect
from pathlib import Path
from typing import Any

import torch

from aimopt.aim import AIM
from aimopt.commands import Subparsers, add_assignments, command, new_file, number, positive, seed
from aimopt.components import Parts
from aimopt.optimizers import available, create
from aimopt.spelling import suggestion

PICTURES = (".png", ".pdf", ".svg")


def add_to(subparsers: Subparsers) -> None:
    """Add the commands response, certify and trajectories; each sets `run`, which takes the parsed arguments."""
    _add_response(subparsers)
    _add_certify(subparsers)
    _add_trajectories(subparsers)


def _add_picture(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--picture", type=new_file(PICTURES), default=Path(name), help="PNG, PDF or SVG to write")


def _wrote(path: Path) -> None:
    print(f"\nwrote {path}")


def _add_response(subparsers: Subparsers) -> None:
    parser = command(
        subparsers,
        "response",
        "the frequency response of optimizers: what their momentum does to the gradient",
        "aimopt response radar adamw nadam --set gamma=0.3 --picture response.png",
        _response,
        extra="theory",
    )
    parser.add_argument("optimizers", nargs="+", metavar="optimizer", help=f"any of {', '.join(available())}")
    parser.add_argument("--lr", type=number(0), help="learning rate; matters only where ell is a fixed number")
    add_assignments(parser, "--set", "a hyperparameter, for those of the optimizers that have it (betas=0.9,0.999)")
    _add_picture(parser, "response.png")


def _response(arguments: argparse.Namespace) -> None:
    from aimopt.theory import pictures, response

    chosen = dict(arguments.set)
    if arguments.lr is not None:
        if "lr" in chosen:
            raise ValueError("--lr and --set lr say the same twice; give one")
        chosen["lr"] = arguments.lr
    built = {name: _build(name, chosen) for name in arguments.optimizers}
    known = set[str]().union(*(_arguments(optimizer) for optimizer in built.values()))
    for name in chosen:
        if name not in known:
            raise ValueError(f"none of {', '.join(built)} has the {name} of --set; {suggestion(name, sorted(known))}")
    sources = {type(optimizer).__name__: optimizer for optimizer in built.values()}
    print("\n\n".join(str(response(optimizer)) for optimizer in sources.values()))
    stable = [f"  {name:<18} {_edge(one)}" for name, one in sources.items()]
    print("\n".join(["\nstable on a quadratic while ηλ/R is below", *stable]))
    _wrote(pictures.save(pictures.response(sources), arguments.picture))


def _edge(optimizer: AIM) -> str:
    from aimopt.theory import quadratic

    geometry = Parts.from_group(optimizer.param_groups[0]).geometry
    if not geometry.linear:
        return f"— ({type(geometry).__name__} is not linear)"
    return f"{quadratic(optimizer).largest_stable:.4g}"


def _build(name: str, chosen: dict[str, Any]) -> AIM:
    """The optimizer over one small matrix, with those of the chosen hyperparameters that it has."""
    params = [torch.zeros(2, 2, requires_grad=True)]
    plain = create(name, params)
    return create(name, params, **{key: value for key, value in chosen.items() if key in _arguments(plain)})


def _arguments(optimizer: AIM) -> set[str]:
    return set(inspect.signature(type(optimizer)).parameters) - {"params"}


def _add_certify(subparsers: Subparsers) -> None:
    parser = command(
        subparsers,
        "certify",
        "Theorem 2 of the paper at a setting: whether it is certified, and what is promised",
        "aimopt certify --L 1 --sigma2 0.1 --nu-min 0.5 --nu-max 1 --lr 5e-3 --ell-ratio 0.01 --batch 32",
        _certify,
        extra="theory",
    )
    finite: dict[str, Any] = dict(type=float, metavar="X")
    parser.add_argument("--L", required=True, help="largest curvature of the objective", **finite)
    parser.add_argument("--sigma2", default=0.0, help="variance of single-sample gradients", **finite)
    parser.add_argument("--nu-min", default=1.0, help="smallest 1/R (1 without preconditioner)", **finite)
    parser.add_argument("--nu-max", default=1.0, help="largest 1/R", **finite)
    parser.add_argument("--lr", required=True, help="η", **finite)
    parser.add_argument("--ell-ratio", default=0.01, help="ℓ/η", **finite)
    parser.add_argument("--beta1", default=0.9, **finite)
    parser.add_argument("--gamma", default=0.1, **finite)
    parser.add_argument("--batch", default=32.0, type=number(0, above=True), metavar="X", help="batch size")
    parser.add_argument(
        "--start",
        default=1.0,
        type=number(0, above=True),
        metavar="X",
        help="V₀ − L*, how far above its minimum the run starts",
    )
    _add_picture(parser, "certificate.png")


def _certify(arguments: argparse.Namespace) -> None:
    from aimopt.theory import certificate, largest_stable_lr, pictures

    shape = {name: getattr(arguments, name) for name in ("L", "nu_min", "nu_max", "beta1", "gamma")}
    try:
        limit = largest_stable_lr(**shape, ell_ratio=arguments.ell_ratio)
        c = certificate(**shape, sigma2=arguments.sigma2, lr=arguments.lr, ell=arguments.ell_ratio * arguments.lr)
    except OverflowError:
        raise ValueError(f"--L {arguments.L:g} and --lr {arguments.lr:g} are too large to compute with") from None
    print(c)
    print(f"\nlargest certified learning rate at this ℓ/η: {limit:.6g}")
    if c.feasible:
        print(f"\n  {'steps':>9}  {'mean of ‖∇L‖² is at most':>25}")
        for power in range(2, 8):
            print(f"  {10**power:>9}  {arguments.start / (c.d2 * 10**power) + c.floor(arguments.batch):>25.4g}")
        print(f"  {'for ever':>9}  {c.floor(arguments.batch):>25.4g}")
    figure = pictures.certificate(c, arguments.start, arguments.batch)
    _wrote(pictures.save(figure, arguments.picture))


def _add_trajectories(subparsers: Subparsers) -> None:
    parser = command(
        subparsers,
        "trajectories",
        "the cells of the design space over a surface, each at its best learning rate",
        "aimopt trajectories beale --steps 200 --picture beale.gif",
        _trajectories,
        extra="theory",
    )
    parser.add_argument("problem", help="rosenbrock, beale or valley")
    parser.add_argument("--steps", type=positive, default=150)
    parser.add_argument("--seed", type=seed, default=0, help="of the gradient noise")
    parser.add_argument(
        "--picture",
        type=new_file((".gif", *PICTURES)),
        help="a GIF (default: the name of the problem), or PNG, PDF, SVG",
    )


def _trajectories(arguments: argparse.Namespace) -> None:
    from aimopt.theory import pictures
    from aimopt.theory.trajectories import PROBLEMS, trajectories

    if arguments.problem not in PROBLEMS:
        raise ValueError(f"no problem is called {arguments.problem!r}; {suggestion(arguments.problem, PROBLEMS)}")
    path = arguments.picture or Path(f"{arguments.problem}.gif")
    run = trajectories(PROBLEMS[arguments.problem], arguments.steps, seed=arguments.seed)
    print(run)
    _wrote(pictures.animate(run, path) if path.suffix == ".gif" else pictures.save(pictures.paths(run), path))
