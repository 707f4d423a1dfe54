"""Explorations: real runs of a few steps, in the same store as comparisons."""

import shlex

import pytest

from aimopt.cli import main
from aimopt.lab import Exploration, Explored, Resources, Store, compare, explore
from aimopt.lab.analysis.explored import PROVES_NOTHING
from aimopt.lab.protocol.study import Contender
from aimopt.lab.results.run import Run, Status
from aimopt.paper.protocols import EXPLORED, PROTOCOLS
from short_studies import SHORT

pytestmark = pytest.mark.xdist_group("explored")  # one process builds what these tests share
TINY = {**SHORT, "steps": 6, "warmup_steps": 0}
OPTIMIZERS = ["AdamW", "RADAR", "Muon", "Lion"]


def tiny(**changes: object) -> Exploration:
    chosen = {"optimizers": OPTIMIZERS, "rates": (0.01, 1.0), "rungs": (1, 2), "settings": TINY, **changes}
    return Exploration.of("digits", "demo", **chosen)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Explored]:
    """The store and the result of an exploration."""
    store = Store(tmp_path_factory.mktemp("explored"))
    return store, explore(tiny(), store, resources=Resources(workers=1))


def test_the_best_go_on_with_more_seeds_and_nothing_is_trained_twice(trained: tuple[Store, Explored]) -> None:
    store, explored = trained
    assert len(tiny().cells({})) == 4 * 2
    assert tiny().count_unknown_runs({}) == 3  # the best two of four, and the reference, with one new seed
    assert not explored.failed
    assert [len(rung.entries) for rung in explored.rungs] in ([8, 2], [8, 3])
    assert all(rung.is_complete for rung in explored.rungs)
    going_on = {entry.candidate: entry.rate for entry in explored.rungs[1].entries}
    assert "AdamW" in going_on
    assert {*going_on.values()} <= {0.01, 0.001}  # the usual rates: a hundredth of them learns nothing
    runs = store.runs()
    assert {(run.config.seed, run.config.steps) for run in runs.values()} == {(2001, 6), (2002, 6)}
    assert len(runs) == 8 + len(going_on)
    assert explore(tiny(), store, resources=Resources(workers=1)).rungs == explored.rungs
    assert store.runs().keys() == runs.keys()


def test_the_table_and_the_command_that_confirms(trained: tuple[Store, Explored]) -> None:
    _, explored = trained
    title, header, *rows = explored.table().splitlines()
    assert title == "Digits, ViT (18k): validation loss at the best rate, mean over seeds"
    assert header.split() == ["optimizer", "learning", "rate", "1", "seed", "2", "seeds"]
    assert sorted(row.split()[0] for row in rows) == sorted(OPTIMIZERS)
    assert all("(at the edge)" in row for row in rows)
    last = [float(row.split()[-1]) for row in rows[: len(explored.rungs[1].entries)]]
    assert last == sorted(last)
    command = shlex.split(explored.confirmation())
    assert command[:2] == ["aimopt", "compare"]
    compared, optimizers = command[2 : command.index("--scale")], command[command.index("--optimizers") + 1 :]
    assert "digits" not in compared
    assert {"cifar10-vit", "wikitext103-gpt2"} <= {*compared}
    assert not any("sac" in name for name in compared)  # higher is better there
    assert optimizers == [*explored.best(), "AdamW"]
    assert len(explored.best()) == 2
    assert "AdamW" not in explored.best()


def test_the_command(trained: tuple[Store, Explored], capsys: pytest.CaptureFixture[str]) -> None:
    store, explored = trained
    settings = " ".join(f"--set {name}={value}" for name, value in TINY.items())
    names, rates = " ".join(OPTIMIZERS), "--rates 0.01 1 --rungs 1 2"
    arguments = f"explore digits --scale demo --optimizers {names} {rates} --store {store.root} {settings}"
    assert main(arguments.split()) == 0
    printed = capsys.readouterr().out
    for line in (*explored.table().splitlines(), PROVES_NOTHING, explored.confirmation()):
        assert line in printed


def test_the_seeds_are_those_of_no_comparison() -> None:
    used = set(tiny().study.seeds)
    for edition in ("fixed", "sequential"):
        protocol = getattr(PROTOCOLS["digits"]["mini"], edition)()
        study = compare("digits", "mini", optimizers=["AdamW"], protocol=protocol)
        assert used.isdisjoint({*study.seeds, *study.tuning_seeds})


def test_what_is_explored_by_default_can_be_made_on_every_task_and_compared() -> None:
    for task, scale in (("digits", "demo"), ("wikitext103-gpt2", "mini"), ("fineweb-qwen", "mini")):
        exploration = Exploration.of(task, scale)
        labels = [contender.label for contender in exploration.study.contenders]
        assert labels == [Contender.named(text).label for text in EXPLORED] == [*EXPLORED]
        assert exploration.study.reference == "AdamW"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rungs": ()}, "seeds per rung must grow from at least 1, got"),
        ({"rungs": (3, 1)}, "seeds per rung must grow"),
        ({"rates": (1.0, 1.0)}, r"rates must be one or more different numbers, got \(1.0, 1.0\)"),
        ({"rates": ()}, "rates must be one or more different numbers"),
        ({"rates": (0.0,)}, "rates must be positive numbers, got"),
        ({"optimizers": ["Adamm"]}, "did you mean 'Adam'"),
        ({"reference": "Adamm"}, "did you mean 'Adam'"),
    ],
)
def test_a_mistake_is_explained(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_a_reference_that_is_not_named_is_added() -> None:
    exploration = tiny(reference="nadam")
    assert [c.label for c in exploration.study.contenders] == [*OPTIMIZERS, "NAdam"]
    assert exploration.study.reference == "NAdam"


def test_a_task_that_cannot_be_loaded_is_left_out_of_the_confirmation(
    trained: tuple[Store, Explored], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to another package; what was explored is known nevertheless."""
    monkeypatch.setattr("aimopt.lab.protocol.tasks.available", lambda: ["cifar10-vit", "broken", "digits"])
    assert "broken" not in trained[1].confirmation()


def test_what_failed_on_every_seed_is_not_called_diverged(trained: tuple[Store, Explored]) -> None:
    exploration = tiny()
    runs = {
        cell.config.identity: Run(config=cell.config, status="failed" if cell.contender == "Lion" else "diverged")
        for cell in exploration.cells({})
    }
    table = Explored(exploration, exploration.plan(runs)).table().splitlines()
    rows = {line.split()[0]: line for line in table[2:]}
    assert "failed" in rows["Lion"]
    assert "diverged" not in rows["Lion"]
    assert "diverged" in rows["AdamW"]


def test_only_what_has_a_score_is_suggested() -> None:
    """A contender that diverged or failed at every rate is no candidate, however few others there are."""
    exploration = tiny()
    key = exploration.study.facts.score.key

    def explored(learned: list[str]) -> Explored:
        runs = {}
        for cell in exploration.cells({}):
            history = [{"step": 6, key: 1.0}] if cell.contender in learned else []
            status: Status = "finished" if history else "failed" if cell.contender == "Lion" else "diverged"
            runs[cell.config.identity] = Run(config=cell.config, status=status, history=history)
        return Explored(exploration, exploration.plan(runs)[:1])

    assert explored(["AdamW", "RADAR"]).best() == ["RADAR"]
    assert shlex.split(explored(["AdamW", "RADAR"]).confirmation())[-3:] == ["--optimizers", "RADAR", "AdamW"]
    assert explored(["AdamW"]).best() == []
    assert explored(["AdamW"]).confirmation().startswith("nothing to confirm: no optimizer other than AdamW has")


def test_the_help_says_what_is_explored_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explore", "--help"])
    assert "default: those that the task's protocol explores" in " ".join(capsys.readouterr().out.split())
