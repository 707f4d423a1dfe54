"""`aimopt report` and `aimopt status`: commands that read what is there."""

import argparse
from collections import Counter
from pathlib import Path

from aimopt.clean_text import one_line
from aimopt.commands import Subparsers, command, folder, whole


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
    report.add_argument("--out", type=folder, metavar="DIR", help="where it goes (STORE/report)")
    report.add_argument(
        "--watch", action="store_true", help="serve it on this machine, refreshing itself while runs are made"
    )
    report.add_argument("--port", type=whole(0, 65535), help="for --watch (any that is free)")
    status = command(
        subparsers,
        "status",
        "what is in a store: studies, runs, what is missing, what failed and why",
        "aimopt status results",
        _status,
        extra="lab",
    )
    for parser in (report, status):
        parser.add_argument("store", type=folder, nargs="?", default=Path("results"), help="the store (results)")
        parser.add_argument(
            "--trust", action="store_true", help="load the code that studies of older versions name, where they need it"
        )


def _report(arguments: argparse.Namespace) -> None:
    import sys

    from aimopt.lab.console import CleanConsole
    from aimopt.lab.investigation import serve_report, write_report
    from aimopt.lab.store import Store

    if arguments.port is not None and not arguments.watch:
        raise ValueError(f"--port {arguments.port} is for --watch; add --watch, or leave --port out")
    store = Store(_existing(arguments.store), must_exist=True)
    if arguments.watch:
        serve_report(store, arguments.out, arguments.port or 0, CleanConsole(), trust=arguments.trust)
    else:
        print(write_report(store, store.studies(trust=arguments.trust), arguments.out))
    for name, reason in store.unreadable.items():
        print(f"cannot read {name}: {reason}", file=sys.stderr)


def _status(arguments: argparse.Namespace) -> int:
    import gc

    from aimopt.lab.store import Store

    gc.freeze()  # what torch brought stays: walking over it again and again takes a tenth of the time of a large store
    store = Store(_existing(arguments.store), must_exist=True)
    studies = store.studies(trust=arguments.trust)
    searching = {config.identity for study in studies for c in study.contenders for config in study.search(c)}
    runs = store.runs(in_full=searching)  # a search's curves say which final runs there are; no others are needed
    for study in studies:
        cells = {cell.config.identity: cell.config for cell in study.cells(runs)}
        states = Counter(runs[identity].status if identity in runs else "missing" for identity in cells)
        states["missing"] += study.unnamed(runs)
        told = ", ".join(f"{count} {state}" for state, count in states.items() if count)
        print(one_line(f"{study.name} of {study.task} at scale {study.scale}: {told}"))
    failed = [run for run in runs.values() if run.status == "failed"]
    for run in failed:
        print(run.failure())
    for name, reason in store.aside().items():
        print(one_line(f"set aside: {name}: {reason}"))
    for name, reason in store.unreadable.items():
        print(one_line(f"cannot read {name}: {reason}"))
    return 1 if failed else 0


def _existing(store: Path) -> Path:
    if not store.is_dir():
        raise ValueError(f"there is no store at {str(store)!r}; `aimopt compare digits --scale demo` makes one")
    return store
