"""The progress of a sweep on the terminal."""

import io

import pytest

from aimopt.cli import main
from aimopt.lab.execution.console import CleanConsole
from aimopt.lab.execution.progress import progress_table, running_runs, show_progress
from aimopt.lab.execution.runner import record_failure
from aimopt.lab.execution.scheduler import ExecutionState
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.messages.clean_text import clean_output
from short_studies import short_run


def test_an_interrupted_run_is_not_shown_as_running(store: Store) -> None:
    config = short_run()
    state = ExecutionState(capacity=1, pending={config.identity: config})
    assert running_runs(state, store) == []
    writer = store.claim_run(config)
    assert writer is not None
    writer.begin(config)
    assert [run.config for run in running_runs(state, store)] == [config]
    writer.release()
    assert running_runs(state, store) == []


def test_a_reason_is_text_of_one_line_wherever_it_is_shown(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    config = short_run()
    record_failure(config, store, "luck\x1b]52;c;eA==\x07\nfailed: \u202enot at all\udc80")
    line = rf"failed: {config}: luck\x1b]52;c;eA==\x07 failed: \u202enot at all\udc80"
    run = store.run(config)
    assert run is not None
    state = ExecutionState(capacity=1, ended_runs={config.identity: run})
    for terminal in (False, True):
        screen = io.StringIO()
        console = CleanConsole(file=screen, width=200, force_terminal=terminal, color_system=None)
        with show_progress(console, store) as on_change:
            on_change(state)
        assert line in [row.strip() for row in screen.getvalue().splitlines()]
        assert not set("\x07\u202e\udc80") & set(screen.getvalue())
    assert main(["status", str(store.root)]) == 1
    assert line in capsys.readouterr().out.splitlines()


def test_a_command_on_a_terminal_shows_colours_and_no_codes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, config = io.StringIO(), short_run()
    monkeypatch.setattr("sys.stdout", screen)
    with clean_output():
        console = CleanConsole(width=80, force_terminal=True, color_system="standard")
        with show_progress(console, store) as on_change:
            on_change(ExecutionState(capacity=1, total=2, pending={config.identity: config}))
            print("of a task")
    assert "\x1b[" in screen.getvalue()  # colours, and the cursor goes up to draw the table again
    assert r"\x1b" not in screen.getvalue()
    assert "of a task" in screen.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_progress_bar_has_its_own_line(store: Store, width: int) -> None:
    screen, config = io.StringIO(), short_run()
    ended = {config.identity: Run(config=config, status="finished")}
    console = CleanConsole(file=screen, width=width, force_terminal=True, color_system=None)
    console.print(progress_table(ExecutionState(capacity=1, total=2, ended_runs=ended), []))
    summary, bar, head, *_ = (line.strip() for line in screen.getvalue().splitlines())
    assert summary.startswith("1 of 2 runs")
    assert set(bar) <= set("━╸╺")
    assert "optimizer" in head
