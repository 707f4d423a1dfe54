"""Scale `paper` has the settings of the paper, and the protocol can run at every scale."""

from typing import Any

import pytest

from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.tasks import available, entry, find
from aimopt.paper.entries import TASKS
from aimopt.paper.protocols import OPTIMIZERS
from aimopt.paper.tasks.sac import SoftActorCritic

VISION: dict[str, Any] = dict(
    lr=1e-3,
    steps=35_100,
    evaluate_every=351,
    warmup_steps=1755,
    last_lr=1e-5,
    batch_size=128,
    label_smoothing=0.1,
    auto_augment=True,
    clip=None,
)
TEXT: dict[str, Any] = dict(clip=1.0, last_lr=0.0)
SAC: dict[str, Any] = dict(
    lr=1e-3,
    steps=1_000_000,
    batch_size=256,
    width=256,
    discount=0.99,
    target_rate=0.005,
    replay=1_000_000,
    warmup=10_000,
    evaluation_episodes=10,
)
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10-vit": dict(VISION, patch=4, width=384, layers=7, heads=12, hidden=384),
    "cifar100-resnet50": dict(VISION, depth=50),
    "wikitext103-gpt2": dict(
        TEXT,
        lr=3e-4,
        steps=10_000,
        warmup_steps=500,
        batch_size=64,
        micro_batches=4,
        block=512,
        precision="float16",
        dropout=0.1,
        corpus="wikitext103-raw",
        tokenizer="gpt2",
    ),
    "fineweb-qwen": dict(
        TEXT,
        lr=3e-4,
        steps=1908,
        warmup_steps=40,
        batch_size=256,
        micro_batches=64,
        block=2048,
        precision="bfloat16",
        rope_base=1e6,
        key_value_heads=2,
    ),
    "wikitext2-finetune": dict(
        TEXT,
        lr=1e-4,
        steps=216,
        evaluate_every=10,
        warmup_steps=0,
        batch_size=64,
        micro_batches=4,
        block=512,
        pretrained="gpt2",
    ),
    "halfcheetah-sac": dict(SAC, environment="HalfCheetah-v4"),
    "walker2d-sac": dict(SAC, environment="Walker2d-v4"),
}
# The second best, underlined in the paper.
SECOND = {
    "cifar10-vit": "Adan",
    "cifar100-resnet50": "Adam",
    "wikitext103-gpt2": "Adan",
    "fineweb-qwen": "RAD",
    "wikitext2-finetune": "NAdam",
    "halfcheetah-sac": "AdaBelief",
    "walker2d-sac": "NAdam",
}


SEARCHED = dict(grid=(0.1, 0.5, 1.0, 5.0, 10.0), seeds=(0, 1, 2, 3, 4))
NOT_SEARCHED = dict(grid=(1.0,), seeds=tuple(range(10)))
# Fields of the study, options of RADAR, options of Adan.
PROTOCOLS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "cifar10-vit": (dict(SEARCHED, search_steps=3510), {"weight_decay": 5e-5, "gamma": 0.1}, {"weight_decay": 5e-5}),
    "cifar100-resnet50": (dict(SEARCHED, search_steps=3510), {"weight_decay": 5e-5, "gamma": 0.1}, {}),
    "wikitext103-gpt2": (dict(SEARCHED, search_steps=1000), {"weight_decay": 0.0, "gamma": 0.1}, {"weight_decay": 0}),
    "fineweb-qwen": (
        dict(SEARCHED),
        {"weight_decay": 0.0, "gamma": 0.01, "betas": [0.9, 0.95]},
        {"betas": [0.98, 0.92, 0.95]},
    ),
    "wikitext2-finetune": (dict(SEARCHED, search_steps=72), {"weight_decay": 0.0, "gamma": 0.1}, {"weight_decay": 0}),
    "halfcheetah-sac": (NOT_SEARCHED, {"weight_decay": 0.0, "gamma": 0.01}, {"weight_decay": 0}),
    "walker2d-sac": (NOT_SEARCHED, {"weight_decay": 0.0, "gamma": 0.01}, {"weight_decay": 0}),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_settings_are_the_papers(name: str) -> None:
    task = find(name).at_scale("paper")
    assert {setting: getattr(task, setting) for setting in SETTINGS[name]} == SETTINGS[name]


@pytest.mark.parametrize("name", TASKS)
def test_the_protocol_is_the_papers(name: str) -> None:
    study = compare(name, "paper")
    fields, radar, adan = PROTOCOLS[name]
    assert {field: getattr(study, field) for field in fields} == fields
    assert (study.subject, study.reference) == ("RADAR", "AdamW")
    for label, options in (("RADAR", radar), ("Adan", adan)):
        assert options.items() <= study.facts.contenders[label].options.items()
    rates = {c.label: study.usual_rate(c) / study.make_task().lr for c in study.contenders}
    assert rates == {**dict.fromkeys(OPTIMIZERS, 1.0), "Adan": 2.5, "Lion": 0.1}


@pytest.mark.parametrize("name", TASKS)
def test_the_published_results_rank_as_the_paper_says(name: str) -> None:
    task, table = find(name), entry(name).protocol("paper").published
    assert table is not None
    published = table.results
    ranked = sorted(published, key=lambda optimizer: published[optimizer][0])
    if task.measure.better == "higher":
        ranked.reverse()
    assert ranked[:2] == ["RADAR", SECOND[name]]
    assert set(ranked) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", available())
def test_the_protocol_can_run_at_every_scale(name: str) -> None:
    for scale in find(name).scales:
        study = compare(name, scale)  # refuses a search with too few evaluations
        task = study.make_task()
        assert study.searches == (len(entry(name).protocol(scale).grid) > 1)
        if isinstance(task, SoftActorCritic):  # the best of the last tenth is not just the last
            assert task.steps > 10 * task.evaluate_every
