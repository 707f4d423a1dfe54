"""Optimizers by name: hybrids, compositions of parts, and what a run gives them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aimopt
from aimopt import groups
from aimopt.lab.execution.runner import start_training, train_run
from aimopt.lab.protocol import optimizers
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.search import with_options
from aimopt.lab.protocol.study import Contender
from aimopt.lab.protocol.supervised import SupervisedTraining
from aimopt.lab.results.store import Store
from aimopt.lab.stats.tuning import Point
from aimopt.paper.presets import CORRECTIONS, GEOMETRIES, table1
from short_studies import SHORT, curves, short_run, stopped_half_way

TWICE = "AIM(filter='EMA(0.9)', geometry='Adaptive(0.999)', correction='FixedPoint(iterations=2)')"
SPECTRAL_TWICE = TWICE.replace("Adaptive(0.999)", "Spectral()")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_of(text: str, task: str = "digits", scale: str = "demo", **changes: Any) -> RunConfig:
    contender = Contender.named(text)
    chosen = {"settings": SHORT, **changes} if task == "digits" else changes
    return RunConfig.create(task, scale, optimizer=contender.optimizer, options=contender.options, **chosen)


def started(config: RunConfig) -> SupervisedTraining:
    training = start_training(config, torch.device("cpu"))
    assert isinstance(training, SupervisedTraining)
    return training


def weights_after(config: RunConfig, steps: int) -> dict[str, Tensor]:
    training = started(config)
    for index in range(steps):
        training.step(index)
    return {name: weight.detach().clone() for name, weight in training.model.named_parameters()}


def test_the_matrices_are_stepped_by_the_named_optimizer_and_the_rest_by_adamw() -> None:
    """A hybrid by name against two separate optimizers, over the same gradients."""
    config = run_of("Muon(weight_decay=0.3, momentum=0.9)", lr=0.01)
    training, by_hand = started(config), started(config)
    split = groups.split(by_hand.model)
    matrices = [p for group in split.matrices for _, p in group["params"]]
    others = [p for group in split.rest(weight_decay=0.3) for _, p in group["params"]]
    assert len(matrices) == 9  # the patch embedding, and per layer attention's two and the two of the MLP
    first = aimopt.Muon(matrices, lr=0.01, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    second = torch.optim.AdamW(others, lr=0.01, weight_decay=0.3)
    for index in range(4):
        training.step(index)
        by_hand._evaluate_gradients(index)
        for group in (*first.param_groups, *second.param_groups):
            group["lr"] = by_hand.task.learning_rate(index, 0.01)
        first.step()
        second.step()
    # Keys' biases have no gradient but rounding errors, which Adam enlarges to steps of their own.
    for weight, expected in zip(training.model.parameters(), by_hand.model.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, atol=1e-3, rtol=0)


def test_the_recommended_hybrid_is_muon_with_radar() -> None:
    assert Contender.named("hybrid").label == "Hybrid"
    weights, same = weights_after(run_of("hybrid"), 3), weights_after(run_of("Muon(rest='RADAR')"), 3)
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_all_options_of_both_halves_are_in_the_identity() -> None:
    plain = run_of("Muon")
    assert plain.options["rest"] == "AdamW"
    assert plain.options["rest_options"]["betas"] == [0.9, 0.999]
    assert plain.options["adjust_lr_fn"] == "match_rms_adamw"
    for same in ("Muon(rest='AdamW')", "Muon(rest='adamw(eps=1e-8)')", "Muon(rest_options={'betas': (0.9, 0.999)})"):
        assert run_of(same).identity == plain.identity
    assert plain.completed().identity == plain.identity
    others = ("Muon(rest='AdamW(eps=1e-6)')", "Muon(momentum=0.9)", "Muon(rest='RADAR')", "Muon(split_fused=True)")
    assert len({plain.identity, *(run_of(other).identity for other in others)}) == 5


def test_a_weight_decay_is_that_of_both_halves() -> None:
    """Of the protocol, of the contender, of all contenders, and one for the rest alone."""

    def decays(text: str, **changes: Any) -> tuple[float, float]:
        study = compare("digits", "demo", optimizers=[text, "AdamW"], settings=SHORT, search_steps=12, **changes)
        options = study.facts.contenders[study.contenders[0].label].options
        config = study.final_runs(study.contenders[0], Point(0.01))[0]
        by_geometry = {g["geometry"]: g["weight_decay"] for g in started(config).optimizers[0].param_groups}
        assert by_geometry == {"Spectral": options["weight_decay"], "Adaptive": options["rest_options"]["weight_decay"]}
        return by_geometry["Spectral"], by_geometry["Adaptive"]

    assert decays("Muon") == (5e-5, 5e-5)
    assert decays("Muon(weight_decay=0.2)") == (0.2, 0.2)
    assert decays("Muon", options={"weight_decay": 0.3}) == (0.3, 0.3)
    assert decays("Muon(weight_decay=0.2, rest='AdamW(weight_decay=0)')") == (0.2, 0.0)


def test_a_searched_weight_decay_is_that_of_both_halves() -> None:
    together, apart = run_of("Muon(weight_decay=0.1)"), run_of("Muon(weight_decay=0.1, rest='AdamW(weight_decay=0)')")
    for config, of_rest in ((together, 0.3), (apart, 0.0)):
        changed = with_options(config.options, {"weight_decay": 0.3})
        assert (changed["weight_decay"], changed["rest_options"]["weight_decay"]) == (0.3, of_rest)


def test_a_protocol_may_ask_for_the_default_options_of_a_composition() -> None:
    """That of FineWeb-Edu does, for the second moment."""
    assert len(table1("fineweb-qwen", "mini").contenders) == 16


def test_an_option_for_all_optimizers_reaches_the_rest_of_a_hybrid() -> None:
    study = compare("digits", "demo", optimizers=["Muon(rest='RADAR')", "AdamW"], options={"gamma": 0.3})
    assert study.contenders[0].options["rest_options"]["gamma"] == 0.3
    with pytest.raises(ValueError, match="has the option 'delta'"):
        compare("digits", "demo", optimizers=["Muon", "AdamW"], options={"delta": 0.3})


@pytest.mark.parametrize("text", ["Muon", "SOAP(rest='RADAR')", SPECTRAL_TWICE])
def test_a_stopped_hybrid_resumes_to_the_bit(text: str, store: Store, tmp_path: Any) -> None:
    name, options = optimizers.from_text(text)
    config = stopped_half_way(store, optimizer=name, options=options)
    whole = Store(tmp_path / "whole")
    assert train_run(config, store) == train_run(config, whole) == "finished"
    stopped, untouched = store.run(config), whole.run(config)
    assert stopped is not None
    assert untouched is not None
    assert [session["from_step"] for session in stopped.sessions] == [0, 6]
    assert curves(stopped) == curves(untouched)
    assert stopped.facts["final"] == untouched.facts["final"]


def test_options_are_resolved_without_warnings() -> None:
    """Of an ℓ above the learning rate, training warns, if it is above the learning rate of the run."""
    assert run_of("RADAR(ell=0.005)", lr=0.01).options["ell"] == 0.005


def test_a_task_that_gives_parameters_instead_of_its_model_is_told_so() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="let the task call make_optimizer with the model"):
        optimizers.make("Muon", list(model.named_parameters()), lr=0.1, options={})


def test_a_second_fixed_point_step_evaluates_the_same_batch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same optimizer with a closure that is written here; the loss is that of the first evaluation."""
    training, by_hand = started(run_of(TWICE, lr=0.01)), started(run_of(TWICE, lr=0.01))
    evaluations: Counter[int] = Counter()
    evaluate = training._evaluate_gradients

    def counted(index: int) -> Tensor:
        evaluations[index] += 1
        return evaluate(index)

    monkeypatch.setattr(training, "_evaluate_gradients", counted)
    (optimizer,) = by_hand.optimizers
    for index in range(3):
        images, labels = by_hand._batch(index, 0)

        def closure(images: Tensor = images, labels: Tensor = labels) -> float:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(by_hand.model(images), labels)
            loss.backward()
            return loss.item()

        for group in optimizer.param_groups:
            group["lr"] = by_hand.task.learning_rate(index, 0.01)
        assert training.step(index).item() == optimizer.step(closure)
    assert evaluations == {0: 2, 1: 2, 2: 2}
    for weight, expected in zip(training.model.parameters(), by_hand.model.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_an_optimizer_of_torch_that_needs_a_closure_gets_one(store: Store) -> None:
    config = short_run(optimizer="torch.optim:LBFGS", options={"max_iter": 2}, lr=0.1, settings={"steps": 2})
    config.check_optimizer()
    assert train_run(config, store) == "finished"


def test_a_closure_is_refused_where_none_can_be_given() -> None:
    with pytest.raises(ValueError, match="a GradScaler takes no closure"):
        started(run_of(TWICE, settings={**SHORT, "precision": "float16"}))
    pytest.importorskip("gymnasium")
    with pytest.raises(ValueError, match="AIM needs a closure for every step, but the task gives none"):
        run_of(TWICE, "pendulum-sac", "mini").check_optimizer()


def test_a_schedule_free_run_is_evaluated_at_its_average() -> None:
    training = started(run_of("ScheduleFreeAdamW", lr=0.05))
    for index in range(4):
        training.step(index)
    before = {name: weight.clone() for name, weight in training.model.state_dict().items()}
    measured = training.evaluate()
    assert all(torch.equal(weight, before[name]) for name, weight in training.model.state_dict().items())
    (optimizer,) = training.optimizers
    assert isinstance(optimizer, aimopt.AIM)
    elsewhere = training._split_means(training.splits.valid)["loss"]
    optimizer.eval()
    assert measured["valid_loss"] == training._split_means(training.splits.valid)["loss"] != elsewhere


PUBLISHED_CELLS = {
    "Euclidean + direct": "SGDM(decoupled_weight_decay=True)",
    "Euclidean + one step": "Nesterov(decoupled_weight_decay=True)",
    "weighted + direct": "AdamW",
    "weighted + one step": "ConstantNAdam(decoupled_weight_decay=True)",
    "spectral + direct": "Muon(nesterov=False)",
    "spectral + one step": "AcceleratedMuon",
    "infinity + direct": "Lion",
    "infinity + one step": "AcceleratedLion",
}


def test_every_cell_of_the_papers_table_is_trained_and_those_with_a_name_are_that_optimizer() -> None:
    study = table1("digits", "demo", settings=SHORT, search_steps=12)
    cells = {contender.label: contender for contender in study.contenders}
    assert [*cells] == [f"{row} + {column}" for row in GEOMETRIES for column in CORRECTIONS]
    assert len({tuple(map(str, contender.options.items())) for contender in study.contenders}) == 16
    weights = {label: weights_after(study.final_runs(cells[label], Point(0.01))[0], 2) for label in cells}
    assert len({float(sum(w.double().sum() for w in named.values())) for named in weights.values()}) == 16
    assert [c.options["weight_decay"] * (c.lr or 0) for c in study.contenders] == pytest.approx(16 * [5e-5 * 0.01])
    for label, text in PUBLISHED_CELLS.items():
        decay = {"weight_decay": cells[label].options["weight_decay"]}
        name, options = optimizers.from_text(text)
        config = RunConfig.create(
            "digits", "demo", optimizer=name, options={**options, **decay}, lr=0.01, settings=SHORT
        )
        published = weights_after(config, 2)
        for name, weight in weights[label].items():
            torch.testing.assert_close(weight, published[name])
