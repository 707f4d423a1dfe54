"""`aimopt overhead`: time and memory of optimizers on a task; nothing else should run on the machine."""

import argparse
from typing import Any

from aimopt.cli.arguments import Subparsers, add_assignments, command, device, positive_integer
from aimopt.cli.lab_arguments import TASK_HELP, add_optimizers, add_scale, protocol_of
from aimopt.lab.defaults import ROUNDS, SCALE


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    overhead = command(
        subparsers,
        "overhead",
        "measure time, peak memory and state bytes of a training step with each optimizer, in turn",
        "aimopt overhead digits --optimizers RADAR AdamW torch.optim:AdamW",
        _overhead,
        extra="lab",
    )
    overhead.add_argument("task", help=TASK_HELP)
    add_optimizers(overhead, "the optimizer that the ratios refer to")
    add_scale(overhead)
    add_assignments(overhead, "--set", "setting of the task; may be repeated")
    overhead.add_argument("--device", type=device, default="cpu", help="device such as cuda:0 (default: cpu)")
    overhead.add_argument(
        "--rounds",
        type=positive_integer,
        default=ROUNDS,
        metavar="N",
        help=f"number of times each optimizer is timed (default: {ROUNDS})",
    )


def _overhead(arguments: argparse.Namespace) -> None:
    from aimopt.lab import Contender, api, compare
    from aimopt.messages.text_table import text_table

    fields: dict[str, Any] = {"settings": arguments.set}
    if arguments.reference is not None:
        fields["reference"] = Contender.named(arguments.reference).label
    scale = arguments.scale or SCALE
    protocol = protocol_of(arguments.task, scale)
    study = compare(arguments.task, scale, optimizers=arguments.optimizers or (), protocol=protocol, **fields)
    measured = api.measure_overhead(study, device=arguments.device, rounds=arguments.rounds)
    rows = [("optimizer", "step ms", f"/ {measured.reference} [quartiles]", "peak MiB", "state bytes per parameter")]
    for cost in measured.costs:
        numbers = (f"{cost.step_seconds * 1e3:.2f}", str(cost.ratio), f"{cost.peak_bytes / 2**20:.0f}")
        rows.append((cost.label, *numbers, f"{cost.state_bytes:.1f}"))
    print(text_table(rows) + "\n\n" + "\n".join(f"{name}: {value}" for name, value in measured.machine.items()))
