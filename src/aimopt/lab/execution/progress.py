"""Show the progress of a sweep: a table that refreshes itself on a terminal, plain lines elsewhere.

    with show_progress(console, store) as on_change:
        execute(studies, store, engine, on_change)

A line looks like this: 12 of 48 runs, 4 running, 1 diverged, 3 min elapsed, about 9 min left
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aimopt.lab.execution.scheduler import ExecutionState
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store

LINE_SECONDS = 10.0  # between two plain lines
TABLE_SECONDS = 1.0
MAX_SHOWN_RUNS = 8  # rows of the table


@contextmanager
def show_progress(console: Console, store: Store) -> Iterator[Callable[[ExecutionState], None]]:
    """A callback for `execute`."""
    if not console.is_terminal:
        yield ProgressLines(console, store)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield ProgressTable(live, store)


class ProgressLines:
    """Prints one line every few seconds, and one line per failure."""

    def __init__(self, console: Console, store: Store):
        self.console, self.store, self.last, self.reported = console, store, float("-inf"), set[str]()

    def __call__(self, state: ExecutionState) -> None:
        """Print a line if it is time."""
        for run in state.failed:
            if run.config.identity not in self.reported:
                self.reported.add(run.config.identity)
                self.console.print(run.failure(), markup=False, highlight=False, soft_wrap=True)
        if state.seconds - self.last >= LINE_SECONDS or not state.pending:
            self.last = state.seconds
            self.console.print(
                progress_line(state, running_runs(state, self.store)), markup=False, highlight=False, soft_wrap=True
            )


class ProgressTable:
    """A table that refreshes itself."""

    def __init__(self, live: Live, store: Store):
        self.live, self.store, self.last = live, store, float("-inf")

    def __call__(self, state: ExecutionState) -> None:
        """Draw the table if it is time."""
        if time.monotonic() - self.last >= TABLE_SECONDS:
            self.last = time.monotonic()
            self.live.update(progress_table(state, running_runs(state, self.store)), refresh=True)


def running_runs(state: ExecutionState, store: Store) -> list[Run]:
    """The runs that a process trains now, with their history so far."""
    runs = (store.run(config) for config in state.pending.values())
    return [run for run in runs if run is not None and run.status == "running" and store.is_claimed(run.config)]


def progress_line(state: ExecutionState, running: list[Run]) -> str:
    """The progress in one line."""
    diverged = sum(run.status == "diverged" for run in state.ended_runs.values())
    parts = [f"{len(state.ended_runs)} of {state.total} runs", f"{len(running)} running"]
    parts += [f"{diverged} diverged"] if diverged else []
    parts += [f"{len(state.failed)} failed"] if state.failed else []
    left = state.seconds_left(running)
    parts += [f"{format_duration(state.seconds)} elapsed"] + (
        [f"about {format_duration(left)} left"] if left is not None else []
    )
    return ", ".join(parts)


def progress_table(state: ExecutionState, running: list[Run]) -> RenderableType:
    """A progress bar, a table with one row per running run, and the last failures."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, justify in (("task", "left"), ("optimizer", "left"), ("lr", "right"), ("seed", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for column in ("step", "training loss", "validation"):
        table.add_column(column, justify="right")
    for run in running[:MAX_SHOWN_RUNS]:
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
    # A bar that is narrower than the terminal ends without a line break. Padding fills its line.
    bar = Padding(ProgressBar(total=max(1, state.total), completed=len(state.ended_runs), width=60))
    failures = [Text(run.failure(), style="red") for run in state.failed[-3:]]
    return Group(Text(progress_line(state, running)), bar, table, *failures)


def format_duration(seconds: float) -> str:
    """Seconds, minutes or hours, rounded."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
