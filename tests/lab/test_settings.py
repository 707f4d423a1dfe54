"""At scale `paper` a setting is the paper's, and at every scale its protocol can be carried out."""

from typing import Any

import pytest

from aimopt.lab.optimizers import PAPER as OPTIMIZERS
from aimopt.lab.study import compare
from aimopt.lab.tasks import PAPER, available, find
from aimopt.lab.tasks.sac import SoftActorCritic

VISION: dict[str, Any] = dict(
    lr=1e-3,
    steps=35_100,
    search_steps=3510,
    evaluate_every=351,
    warmup_steps=1755,
    last_lr=1e-5,
    weight_decay=5e-5,
    batch_size=128,
    label_smoothing=0.1,
    auto_augment=True,
    clip=None,
)
TEXT: dict[str, Any] = dict(clip=1.0, last_lr=0.0, weight_decay=0.0)
SAC: dict[str, Any] = dict(
    lr=1e-3,
    steps=1_000_000,
    batch_size=256,
    width=256,
    discount=0.99,
    target_rate=0.005,
    replay=1_000_000,
    warmup=10_000,
    gamma=0.01,
    evaluation_episodes=10,
    grid=(1.0,),
    seeds=tuple(range(10)),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10-vit": dict(VISION, patch=4, width=384, layers=7, heads=12, hidden=384),
    "cifar100-resnet50": dict(VISION, depth=50),
    "wikitext103-gpt2": dict(
        TEXT,
        lr=3e-4,
        steps=10_000,
        search_steps=1000,
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
        beta2=0.95,
        gamma=0.01,
        rope_base=1e6,
        key_value_heads=2,
    ),
    "wikitext2-finetune": dict(
        TEXT,
        lr=1e-4,
        steps=216,
        search_steps=72,
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
# Whom the paper underlines.
SECOND = {
    "cifar10-vit": "Adan",
    "cifar100-resnet50": "Adam",
    "wikitext103-gpt2": "Adan",
    "fineweb-qwen": "RAD",
    "wikitext2-finetune": "NAdam",
    "halfcheetah-sac": "AdaBelief",
    "walker2d-sac": "NAdam",
}


@pytest.mark.parametrize("name", PAPER)
def test_the_settings_are_the_papers(name: str) -> None:
    task = find(name).at("paper")
    assert {setting: getattr(task, setting) for setting in SETTINGS[name]} == SETTINGS[name]
    if name not in ("halfcheetah-sac", "walker2d-sac"):
        assert (task.grid, task.seeds) == ((0.1, 0.5, 1.0, 5.0, 10.0), (0, 1, 2, 3, 4))


@pytest.mark.parametrize("name", PAPER)
def test_the_published_results_rank_as_the_paper_says(name: str) -> None:
    task = find(name)
    ranked = sorted(task.published, key=lambda optimizer: task.published[optimizer][0])
    if task.measure.better == "higher":
        ranked.reverse()
    assert ranked[:2] == ["RADAR", SECOND[name]]
    assert set(ranked) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", available())
def test_the_protocol_can_be_carried_out_at_every_scale(name: str) -> None:
    for scale in find(name).scales:
        study = compare(name, scale)  # refuses a search with too few evaluations
        task = study.make_task()
        assert study.searches == (len(task.grid) > 1)
        if isinstance(task, SoftActorCritic):  # the best of the last tenth is not just the last
            assert task.steps > 10 * task.evaluate_every
