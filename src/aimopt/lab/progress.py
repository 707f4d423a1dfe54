"""How a sweep goes, for people: a table that refreshes itself on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aimopt.lab.execution import Situation
from aimopt.lab.runs import Run
from aimopt.lab.store import Store

LINE_SECONDS = 10.0  # between two plain lines
TABLE_SECONDS = 1.0
SHOWN = 8  # runs at work


@contextmanager
def shown(console: Console, store: Store) -> Iterator[Callable[[Situation], None]]:
    """A watcher for `execute`."""
    if not console.is_terminal:
        yield Lines(console, store)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Screen(live, store)


class Lines:
    """A line now and then, and one for every failure."""

    def __init__(self, console: Console, store: Store):
        self.console, self.store, self.last, self.told = console, store, float("-inf"), set[str]()

    def __call__(self, now: Situation) -> None:
        """Say how it goes, if it is time."""
        for run in now.failed:
            if run.config.identity not in self.told:
                self.told.add(run.config.identity)
                self.console.print(run.failure(), markup=False, highlight=False, soft_wrap=True)
        if now.seconds - self.last >= LINE_SECONDS or not now.open:
            self.last = now.seconds
            self.console.print(headline(now, at_work(now, self.store)), markup=False, highlight=False, soft_wrap=True)


class Screen:
    """A table that refreshes itself."""

    def __init__(self, live: Live, store: Store):
        self.live, self.store, self.last = live, store, float("-inf")

    def __call__(self, now: Situation) -> None:
        """Draw the table, if it is time."""
        if time.monotonic() - self.last >= TABLE_SECONDS:
            self.last = time.monotonic()
            self.live.update(picture(now, at_work(now, self.store)), refresh=True)


def at_work(now: Situation, store: Store) -> list[Run]:
    """The runs that are being made, with their curves so far."""
    found = (store.run(config) for config in now.open.values())
    return [run for run in found if run is not None and run.status == "running" and store.at_work(run.config)]


def headline(now: Situation, running: list[Run]) -> str:
    """One line on the whole."""
    diverged = sum(run.status == "diverged" for run in now.ended.values())
    parts = [f"{len(now.ended)} of {now.total} runs", f"{len(running)} at work"]
    parts += [f"{diverged} diverged"] if diverged else []
    parts += [f"{len(now.failed)} failed"] if now.failed else []
    left = now.seconds_left(running)
    parts += [f"{duration(now.seconds)} gone"] + ([f"about {duration(left)} left"] if left is not None else [])
    return ", ".join(parts)


def picture(now: Situation, running: list[Run]) -> RenderableType:
    """The whole as a bar, the runs at work as a table, and what failed."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, justify in (("task", "left"), ("optimizer", "left"), ("lr", "right"), ("seed", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for column in ("step", "training loss", "validation"):
        table.add_column(column, justify="right")
    for run in running[:SHOWN]:
        config, last = run.config, run.history[-1] if run.history else {}
        score = run.curve(config.make_task().score.key)
        table.add_row(
            Text(config.task),
            Text(config.optimizer),
            f"{config.lr:g}",
            str(config.seed),
            f"{int(last.get('step', 0))}/{config.steps}",
            f"{last['train_loss']:.4f}" if last else "",
            f"{score[-1][1]:.4f}" if score else "",
        )
    bar = ProgressBar(total=max(1, now.total), completed=len(now.ended), width=60)
    failures = [Text(run.failure(), style="red") for run in now.failed[-3:]]
    return Group(Text(headline(now, running)), bar, table, *failures)


def duration(seconds: float) -> str:
    """As people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
