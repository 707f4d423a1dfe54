"""The theory on the command line: each command prints a table and writes a plot.

    aimopt response radar adamw lion                                      response.png
    aimopt certify --L 1 --sigma2 0.1 --nu-min 0.5 --lr 5e-3              certificate.png
    aimopt trajectories rosenbrock                                        rosenbrock.gif

They import what they need when they run, so that the command line starts and completes names without torch.
"""

import argparse
import math
from pathlib import Path
from typing import Any

from aimopt.cli.arguments import (
    Subparsers,
    add_assignments,
    command,
    finite_number,
    number,
    output_file,
    positive_integer,
    seed,
)
from aimopt.messages.spelling import suggestion

# Ctrl-C must not raise an exception in the middle of these: it may be caught there, or end in a crash.
IMPORTS = (
    "scipy.optimize",
    "matplotlib.pyplot",
    "matplotlib.animation",
    "contourpy",
    "PIL.GifImagePlugin",
    "aimopt.optimizers",
    "aimopt.theory.plots",
)
PLOT_ENDINGS = (".png", ".pdf", ".svg")


def add_to(subparsers: Subparsers) -> None:
    """Add the commands response, certify and trajectories."""
    _add_response(subparsers)
    _add_certify(subparsers)
    _add_trajectories(subparsers)


def _add_picture(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "--picture",
        type=output_file(PLOT_ENDINGS),
        default=Path(name),
        help=f"file of the plot: PNG, PDF or SVG (default: {name})",
    )


def _print_written(path: Path) -> None:
    print(f"\nwrote {path}")


def _add_response(subparsers: Subparsers) -> None:
    parser = command(
        subparsers,
        "response",
        "show the frequency response of optimizers: the effect of their momentum on the gradient",
        "aimopt response radar adamw nadam --set gamma=0.3 --picture response.png",
        _response,
        extra="theory",
    )
    parser.add_argument(
        "optimizers",
        nargs="+",
        metavar="optimizer",
        help="optimizers by name (see `aimopt optimizers`), or file.py:Class of an optimizer, a filter or a correction",
    )
    parser.add_argument("--lr", type=finite_number(0), help="learning rate; it matters only if ell is a fixed number")
    add_assignments(
        parser,
        "--set",
        "hyperparameter for all given optimizers that have it, such as betas=0.9,0.999; may be repeated",
    )
    _add_picture(parser, "response.png")


def _response(arguments: argparse.Namespace) -> None:
    import numpy as np

    from aimopt.cli import theory_sources
    from aimopt.theory import plots, response

    hyperparameters = dict(arguments.set)
    if arguments.lr is not None:
        if "lr" in hyperparameters:
            raise ValueError("--lr and --set lr both set the learning rate; give one")
        hyperparameters["lr"] = arguments.lr
    built = {name: theory_sources.source(name, hyperparameters) for name in arguments.optimizers}
    known = set[str]().union(*map(theory_sources.arguments, built))
    for name in hyperparameters:
        if name not in known:
            raise ValueError(f"none of {', '.join(built)} has the {name} of --set; {suggestion(name, sorted(known))}")
    sources = {theory_sources.label(source): source for source in built.values()}
    try:
        with np.errstate(over="raise"):
            responses = [str(response(source)) for source in sources.values()]
            limits = [f"  {name:<18} {theory_sources.stability_limit(source)}" for name, source in sources.items()]
            figure = plots.response(sources)
    except ArithmeticError:
        names = ", ".join(sources)
        raise ValueError(f"the response of {names} cannot be computed: its coefficients are too large") from None
    print("\n\n".join(responses))
    print("\n".join(["\nstable on a quadratic while ηλ/R is below", *limits]))
    _print_written(plots.save(figure, arguments.picture))


def _add_certify(subparsers: Subparsers) -> None:
    parser = command(
        subparsers,
        "certify",
        "check Theorem 2 of the paper at one setting: whether it holds, and the bound it gives",
        "aimopt certify --L 1 --sigma2 0.1 --nu-min 0.5 --nu-max 1 --lr 5e-3 --ell-ratio 0.01 --batch 32",
        _certify,
        extra="theory",
    )
    real_number: dict[str, Any] = dict(type=number, metavar="X")
    parser.add_argument("--L", required=True, help="largest curvature of the objective", **real_number)
    parser.add_argument("--sigma2", default=0.0, help="variance of single-sample gradients (default: 0)", **real_number)
    parser.add_argument(
        "--nu-min", default=1.0, help="smallest preconditioner 1/R (default: 1, no preconditioner)", **real_number
    )
    parser.add_argument("--nu-max", default=1.0, help="largest preconditioner 1/R (default: 1)", **real_number)
    parser.add_argument("--lr", required=True, help="learning rate η", **real_number)
    parser.add_argument(
        "--ell-ratio", default=0.01, help="residual step ℓ as a fraction of η (default: 0.01)", **real_number
    )
    parser.add_argument("--beta1", default=0.9, help="decay β1 of the average (default: 0.9)", **real_number)
    parser.add_argument(
        "--gamma", default=0.1, help="weight γ of the gradient difference (default: 0.1)", **real_number
    )
    parser.add_argument(
        "--batch", default=32.0, type=finite_number(0, above=True), metavar="X", help="batch size (default: 32)"
    )
    parser.add_argument(
        "--start",
        default=1.0,
        type=finite_number(0, above=True),
        metavar="X",
        help="V₀ − L*: the height of the start above the minimum (default: 1)",
    )
    _add_picture(parser, "certificate.png")


def _certify(arguments: argparse.Namespace) -> None:
    from aimopt.theory import certificate, largest_stable_lr, plots

    shape = {name: getattr(arguments, name) for name in ("L", "nu_min", "nu_max", "beta1", "gamma")}
    try:
        limit = largest_stable_lr(**shape, ell_ratio=arguments.ell_ratio)
        c = certificate(**shape, sigma2=arguments.sigma2, lr=arguments.lr, ell=arguments.ell_ratio * arguments.lr)
    except ArithmeticError:
        limit, c = math.inf, None
    if c is None or not math.isfinite(limit):
        values = ", ".join(f"{name} {value:g}" for name, value in {**shape, "lr": arguments.lr}.items())
        raise ValueError(f"{values}: some of these are too large or too small to compute with; give others")
    print(c)
    print(f"\nlargest certified learning rate at this ℓ/η: {limit:.6g}")
    if c.feasible:
        print(f"\n  {'steps':>9}  {'bound of the mean ‖∇L‖²':>25}")
        for power in range(2, 8):
            print(f"  {10**power:>9}  {c.bound(10**power, arguments.start, arguments.batch):>25.4g}")
        print(f"  {'infinity':>9}  {c.floor(arguments.batch):>25.4g}")
    figure = plots.certificate(c, arguments.start, arguments.batch)
    _print_written(plots.save(figure, arguments.picture))


def _add_trajectories(subparsers: Subparsers) -> None:
    parser = command(
        subparsers,
        "trajectories",
        "run the combinations of the design space on a surface, each at its best learning rate",
        "aimopt trajectories beale --steps 200 --picture beale.gif",
        _trajectories,
        extra="theory",
    )
    parser.add_argument("problem", help="surface to descend: rosenbrock, beale or valley")
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        metavar="file.py:Class",
        help="part of your own, to run with the others; may be repeated",
    )
    parser.add_argument("--steps", type=positive_integer, default=150, help="number of steps (default: 150)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the gradient noise (default: 0)")
    parser.add_argument(
        "--picture",
        type=output_file((".gif", *PLOT_ENDINGS)),
        help="file of the plot: GIF, PNG, PDF or SVG (default: the name of the problem with .gif)",
    )


def _trajectories(arguments: argparse.Namespace) -> None:
    from aimopt.cli import theory_sources
    from aimopt.theory import plots
    from aimopt.theory.trajectories import PROBLEMS, trajectories

    if arguments.problem not in PROBLEMS:
        raise ValueError(f"no problem is called {arguments.problem!r}; {suggestion(arguments.problem, PROBLEMS)}")
    path = arguments.picture or Path(f"{arguments.problem}.gif")
    own = [theory_sources.part(name) for name in arguments.part]
    runs = trajectories(PROBLEMS[arguments.problem], arguments.steps, seed=arguments.seed, own=own)
    print(runs)
    _print_written(plots.animate(runs, path) if path.suffix == ".gif" else plots.save(plots.paths(runs), path))
