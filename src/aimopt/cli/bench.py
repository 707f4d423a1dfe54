"""`aimopt bench step` and `aimopt bench train`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aimopt.atomic_files import write_atomically
from aimopt.cli.arguments import command, output_file, positive_integer
from aimopt.measure.model_shapes import MODELS
from aimopt.messages.spelling import suggestion


def add_to(commands: Any) -> None:
    """Add the command."""
    bench = commands.add_parser(
        "bench",
        help="time optimizers against each other",
        description="Time optimizers in turn in one process, and print the medians of their paired ratios.",
        epilog="example: aimopt bench step --models tiny,vit --json step.json",
    )
    kinds = bench.add_subparsers(dest="kind", required=True, metavar="{step,train}")
    step = command(
        kinds,
        "step",
        "time the optimizer step against torch's and the installed peers'",
        "aimopt bench step --models tiny,vit --json step.json",
        _step,
        extra="test",
    )
    step.add_argument(
        "--models",
        type=_models,
        default=list(MODELS),
        help=f"comma-separated models to time (default: {','.join(MODELS)})",
    )
    step.add_argument("--html", type=output_file((".html",)), metavar="FILE", help="web page to write the results to")
    train = command(
        kinds,
        "train",
        "time the whole training step of a small GPT",
        "aimopt bench train --rounds 30",
        _train,
        extra="test",
    )
    for parser, rounds in ((step, 15), (train, 30)):
        parser.add_argument(
            "--rounds",
            type=positive_integer,
            default=rounds,
            help=f"number of rounds; every optimizer is timed once per round (default: {rounds})",
        )
        parser.add_argument("--json", type=output_file(), metavar="FILE", help="JSON file to write the results to")
        parser.add_argument(
            "--quick", action="store_true", help="run for seconds instead of minutes, to check that the benchmark works"
        )


def _models(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no model is called {unknown[0]!r}; {suggestion(unknown[0], MODELS)}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"a model is named twice in {text!r}; name each once")
    return names


def _refuse_with_quick(options: argparse.Namespace) -> None:
    """Refuse what `--quick` would not use."""
    for name in ("models", "rounds"):
        if options.quick and name in vars(options).get("given", ()):
            raise ValueError(f"--quick has its own {name}; leave out --{name} or --quick")


def _step(options: argparse.Namespace) -> int:
    _refuse_with_quick(options)
    from aimopt.measure import step_benchmark

    rows = step_benchmark.run(["tiny"], 2) if options.quick else step_benchmark.run(options.models, options.rounds)
    _show(step_benchmark.table(rows), rows, options.json)
    if options.html is not None:
        from aimopt.measure.benchmark_page import page
        from aimopt.measure.machine import describe_machine

        write_atomically(options.html, page(rows, describe_machine()))
        print(f"written to {options.html}")
    return 0


def _train(options: argparse.Namespace) -> int:
    _refuse_with_quick(options)
    from aimopt.measure import train_benchmark

    rows = train_benchmark.run(2, width=32, layers=1) if options.quick else train_benchmark.run(options.rounds)
    return _show(train_benchmark.table(rows), rows, options.json)


def _show(table: str, rows: Sequence[Any], file: Path | None) -> int:
    from aimopt.measure.machine import describe_machine

    machine = describe_machine()
    print("\n" + table + "\n\n" + "\n".join(f"{name}: {value}" for name, value in machine.items()))
    if file is not None:
        text = json.dumps({"machine": machine, "rows": [_plain(row) for row in rows]}, indent=1)
        write_atomically(file, text)
        print(f"\nwritten to {file}")
    return 0


def _plain(row: Any) -> dict[str, Any]:
    return {name: value._asdict() if hasattr(value, "_asdict") else value for name, value in row._asdict().items()}
