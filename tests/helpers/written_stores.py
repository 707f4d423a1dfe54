"""A small store as runs write it, without training: one study with costs, all of its runs finished."""

from pathlib import Path

from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.costs import Cost, Overhead
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.measure.timing import Ratio
from short_studies import short_study

SESSION = {
    "from_step": 0,
    "versions": {"torch": "2.13.0"},
    "commit": "abc",
    "machine": {"host": "here", "threads": "1"},
    "data": "0" * 64,
}


def written_run(store: Store, config: RunConfig) -> Run:
    """Write a finished run whose losses depend on its learning rate and seed."""
    writer = store.claim_run(config)
    assert writer is not None
    writer.begin(config)
    writer.add_session(SESSION)
    loss = config.lr * 10 + config.seed
    steps = range(2, config.steps + 1, 2)
    history = [{"step": s, "train_loss": loss / s, "lr": config.lr, "seconds": s / 10} for s in steps]
    measured = [{**record, "valid_loss": loss + 1 / record["step"], "test_loss": loss} for record in history]
    writer.write_result("finished", "", measured, {"seconds": 1.2, "parameters": 10, "initial": str(config.seed)})
    writer.release()
    run = store.run(config)
    assert run is not None
    return run


def written_store(root: Path) -> tuple[Store, Study]:
    """Ten runs, a study, its costs, and something that was set aside."""
    store, study = Store(root), short_study()
    store.save_study(study)
    runs: dict[str, Run] = {}
    while todo := [cell.config for cell in study.cells(runs) if cell.config.identity not in runs]:
        for config in todo:
            runs.setdefault(config.identity, written_run(store, config))
    costs = [
        Cost(label=c.label, step_seconds=0.1, ratio=Ratio(1.0, 0.9, 1.1), peak_bytes=10**8, state_bytes=8.0)
        for c in study.contenders
    ]
    store.save_overhead(study, Overhead(reference=study.reference, costs=costs, machine={"processor": "x"}))
    aside = root / "set-aside" / "digits-demo.RADAR.0"
    aside.mkdir(parents=True)
    (aside / "reason.txt").write_text("half of it\n")
    return store, study
