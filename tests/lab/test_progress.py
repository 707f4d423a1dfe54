"""What people are told of a sweep."""

from aimopt.lab.execution import Situation
from aimopt.lab.progress import at_work
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
