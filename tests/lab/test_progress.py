"""What people are told of a sweep."""

import io

import pytest

from aimopt.cli import main
from aimopt.lab.console import CleanConsole
from aimopt.lab.execution import Situation
from aimopt.lab.progress import at_work, shown
from aimopt.lab.runner import record_failure
from aimopt.lab.store import Store
from short import short_run


def test_a_run_that_was_interrupted_is_not_called_at_work(store: Store) -> None:
    config = short_run()
    now = Situation(room=1, open={config.identity: config})
    assert at_work(now, store) == []
    work = store.work(config)
    assert work is not None
    work.begin(config)
    assert [run.config for run in at_work(now, store)] == [config]
    work.release()
    assert at_work(now, store) == []


def test_a_reason_is_text_of_one_line_wherever_it_is_shown(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    config = short_run()
    record_failure(config, store, "luck\x1b]52;c;eA==\x07\nfailed: \u202enot at all\udc80")
    line = rf"failed: {config}: luck\x1b]52;c;eA==\x07 failed: \u202enot at all\udc80"
    run = store.run(config)
    assert run is not None
    now = Situation(room=1, ended={config.identity: run})
    for terminal in (False, True):
        screen = io.StringIO()
        console = CleanConsole(file=screen, width=200, force_terminal=terminal, color_system=None)
        with shown(console, store) as watch:
            watch(now)
        assert line in [row.strip() for row in screen.getvalue().splitlines()]
        assert not set("\x07\u202e\udc80") & set(screen.getvalue())
    assert main(["status", str(store.root)]) == 1
    assert line in capsys.readouterr().out.splitlines()
