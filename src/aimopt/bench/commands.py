"""`aimopt bench step` and `aimopt bench train`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aimopt.bench.shapes import MODELS
from aimopt.commands import command, new_file, positive
from aimopt.spelling import suggestion


def add_to(commands: Any) -> None:
    """Add the command to a command line."""
    bench = commands.add_parser(
        "bench",
        help="time optimizers in turn, in one process",
        description="Time optimizers in turn, in one process, and give the medians of their paired ratios.",
        epilog="example: aimopt bench step --models tiny,vit --json step.json",
    )
    kinds = bench.add_subparsers(dest="kind", required=True, metavar="{step,train}")
    step = command(
        kinds,
        "step",
        "the optimizer step beside torch's and the installed peers'",
        "aimopt bench step --models tiny,vit --json step.json",
        _step,
        extra="test",
    )
    step.add_argument("--models", type=_models, default=list(MODELS), help=f"some of {','.join(MODELS)} (all)")
    train = command(
        kinds, "train", "a small GPT's whole training step", "aimopt bench train --rounds 30", _train, extra="test"
    )
    for parser, rounds in ((step, 15), (train, 30)):
        parser.add_argument("--rounds", type=positive, default=rounds, help=f"how often each is timed ({rounds})")
        parser.add_argument("--json", type=new_file(), metavar="FILE", help="also write the results there")
        parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: does it work here?")


def _models(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no model is called {unknown[0]!r}; {suggestion(unknown[0], MODELS)}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"a model is named twice in {text!r}; name each once")
    return names


def _step(options: argparse.Namespace) -> int:
    from aimopt.bench import step

    rows = step.run(["tiny"], 2) if options.quick else step.run(options.models, options.rounds)
    return _show(step.table(rows), rows, options.json)


def _train(options: argparse.Namespace) -> int:
    from aimopt.bench import train

    rows = train.run(2, width=32, layers=1) if options.quick else train.run(options.rounds)
    return _show(train.table(rows), rows, options.json)


def _show(table: str, rows: Sequence[Any], file: Path | None) -> int:
    from aimopt.bench.timing import machine

    where = machine()
    print("\n" + table + "\n\n" + "\n".join(f"{name}: {value}" for name, value in where.items()))
    if file is not None:
        text = json.dumps({"machine": where, "rows": [_plain(row) for row in rows]}, indent=1)
        partial = file.with_name(file.name + ".partial")
        partial.write_text(text)
        partial.replace(file)
        print(f"\nwritten to {file}")
    return 0


def _plain(row: Any) -> dict[str, Any]:
    return {name: value._asdict() if hasattr(value, "_asdict") else value for name, value in row._asdict().items()}
