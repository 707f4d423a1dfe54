"""`aimopt overhead`: what optimizers cost on a task, measured with nothing else running."""

import argparse

from aimopt.commands import Subparsers, add_assignments, command, device, positive


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    overhead = command(
        subparsers,
        "overhead",
        "time, peak memory and bytes of state of a training step under each optimizer, in turn",
        "aimopt overhead digits --optimizers RADAR AdamW torch.optim:AdamW",
        _overhead,
        extra="lab",
    )
    overhead.add_argument("task", help="a task (see `aimopt tasks`), or yours: file.py:Class")
    overhead.add_argument(
        "--optimizers", nargs="+", metavar="NAME", help="names, with options or places (the paper's 8)"
    )
    overhead.add_argument("--reference", metavar="NAME", help="whose step is 1 (AdamW)")
    overhead.add_argument("--scale", default="mini", help="of the task: mini, paper, … (mini)")
    add_assignments(overhead, "--set", "of the task")
    overhead.add_argument("--device", type=device, default="cpu", help="such as cuda:0 (cpu)")
    overhead.add_argument("--rounds", type=positive, default=15, help="how often each is timed (15)")


def _overhead(arguments: argparse.Namespace) -> None:
    from aimopt.bench.timing import Ratio, aligned
    from aimopt.lab import optimizers, tasks
    from aimopt.lab.measurement import measure
    from aimopt.lab.study import Contender, compare

    said = {} if arguments.reference is None else {"reference": Contender.named(arguments.reference).label}
    names = arguments.optimizers or optimizers.PAPER
    study = compare(arguments.task, arguments.scale, optimizers=names, settings=arguments.set, **said)
    tasks.prepare(study.task, study.make_task())
    measured = measure(study, device=arguments.device, rounds=arguments.rounds)
    rows = [("optimizer", "step ms", f"/ {measured.reference} [quartiles]", "peak MiB", "state bytes a parameter")]
    for cost in measured.costs:
        numbers = (f"{cost.step_seconds * 1e3:.2f}", str(Ratio(*cost.ratio)), f"{cost.peak_bytes / 2**20:.0f}")
        rows.append((cost.label, *numbers, f"{cost.state_bytes:.1f}"))
    print(aligned(rows) + "\n\n" + "\n".join(f"{name}: {value}" for name, value in measured.machine.items()))
