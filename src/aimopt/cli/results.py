"""`aimopt report` and `aimopt status`: commands that read a store."""

import argparse
import sys
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

from aimopt.cli.arguments import FAILED, Subparsers, command, folder, integer
from aimopt.lab.defaults import STORE
from aimopt.messages.clean_text import one_line

STATES = ("finished", "diverged", "failed", "running", "interrupted", "missing")


def add_to(subparsers: Subparsers) -> None:
    """Add the commands."""
    report = command(
        subparsers,
        "report",
        "write the report of a store: HTML, Markdown, LaTeX, CSV and figures",
        "aimopt report results --watch",
        _report,
        extra="lab",
    )
    report.add_argument("--out", type=folder, metavar="DIR", help="folder of the report (default: STORE/report)")
    report.add_argument(
        "--watch", action="store_true", help="serve the report on this machine and refresh it while runs are trained"
    )
    report.add_argument(
        "--port",
        type=integer(0, 65535),
        metavar="N",
        help="port of the server that --watch starts (default: any free port)",
    )
    status = command(
        subparsers,
        "status",
        "list the studies of a store with the states of their runs, and why some failed",
        "aimopt status results",
        _status,
        extra="lab",
    )
    for parser in (report, status):
        parser.add_argument(
            "store", type=folder, nargs="?", default=Path(STORE), help=f"folder of the store (default: {STORE})"
        )
        parser.add_argument(
            "--trust",
            action="store_true",
            help="load the code that studies of older versions name; read that code first",
        )


def _report(arguments: argparse.Namespace) -> None:
    from aimopt.lab import Store, api
    from aimopt.lab.findings import write_report

    if arguments.port is not None and not arguments.watch:
        raise ValueError(f"--port {arguments.port} is for --watch; add --watch, or leave --port out")
    store = Store(_existing(arguments.store), must_exist=True)
    if arguments.watch:
        api.serve_report(store, arguments.out, arguments.port or 0, _announce, trust=arguments.trust)
    else:
        findings = api.analyse_all(store.studies(trust=arguments.trust), store)
        print(write_report(findings, arguments.out or store.root / "report"))
    for name, reason in store.unreadable.items():
        print(f"cannot read {name}: {reason}", file=sys.stderr)


def _announce(text: str) -> None:
    print(one_line(text), flush=True)


def _status(arguments: argparse.Namespace) -> int:
    import gc

    from aimopt.lab import Store, api
    from aimopt.lab.execution.progress import format_duration
    from aimopt.lab.report.phrasing import told_apart

    gc.freeze()  # otherwise the garbage collector takes a tenth of the time of a large store, for the objects of torch
    status = api.status(Store(_existing(arguments.store), must_exist=True), trust=arguments.trust)
    names = told_apart([(f"{s.name} of {s.task} at scale {s.scale}", s) for s, _ in status.studies])
    for name, (_, states) in sorted(zip(names, status.studies, strict=True), key=itemgetter(0)):
        print(one_line(f"{name}: {_counts(states)}"))
    if status.in_no_study:
        print(f"in no study: {_counts(status.in_no_study)}")
    for run, holder in status.silent:
        silence = f"{holder} has given no sign of life for {format_duration(holder.silent_seconds)}"
        print(one_line(f"interrupted, as far as is known: {run.config}: {silence}"))
    for run in status.failed:
        print(run.failure())
    for name, reason in status.set_aside.items():
        print(one_line(f"set aside: {name}: {reason}"))
    for name, reason in status.unreadable.items():
        print(one_line(f"cannot read {name}: {reason}"))
    return FAILED if status.failed else 0


def _counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{states[state]} {state}" for state in STATES if states[state])


def _existing(store: Path) -> Path:
    if not store.is_dir():
        raise ValueError(f"there is no store at {str(store)!r}; `aimopt compare digits --scale demo` makes one")
    return store
