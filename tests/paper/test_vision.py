"""The vision tasks: their splits, the loss they report, and training that can be repeated and resumed."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.lab.protocol.task import Context, Training
from aimopt.lab.protocol.tasks import find
from aimopt.paper.data.images import Images
from aimopt.paper.tasks.vision import Cifar, Cifar10ViT, Cifar100ResNet

# Small enough for a test, and otherwise as in the paper, AutoAugment included.
SMALL: dict[str, dict[str, Any]] = {
    "cifar10-vit": {"width": 32, "layers": 2, "train_per_class": 20, "valid_per_class": 4, "test_per_class": 6},
    "cifar100-resnet50": {"train_per_class": 3, "valid_per_class": 1, "test_per_class": 2},
}


def made(classes: int, train: int, test: int) -> Images:
    """Noisy pictures of coarse patterns, one pattern a class, in random order."""
    draw = torch.Generator().manual_seed(0)
    patterns = torch.randint(40, 216, (classes, 4, 4, 3), generator=draw)

    def images(each: int) -> tuple[Tensor, Tensor]:
        labels = torch.randperm(each * classes, generator=draw) % classes
        large = patterns[labels].repeat_interleave(8, 1).repeat_interleave(8, 2)
        return (large + torch.randint(-40, 40, large.shape, generator=draw)).to(torch.uint8), labels

    return Images(*images(train), *images(test))


@pytest.fixture(autouse=True)
def made_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aimopt.paper.tasks.vision.cifar10", lambda: made(10, train=25, test=8))
    monkeypatch.setattr("aimopt.paper.tasks.vision.cifar100", lambda: made(100, train=5, test=3))


def small(name: str, **settings: Any) -> Cifar:
    task = find(name).at_scale("mini", {"auto_augment": True, "batch_size": 32, **SMALL[name], **settings})
    assert isinstance(task, Cifar)
    return task


def start(task: Cifar) -> Training:
    build = lambda model: aimopt.create("RADAR", model, lr=5e-3, weight_decay=5e-5)  # noqa: E731
    return task.start(Context(seed=0, make_optimizer=build))


@pytest.mark.parametrize("name", SMALL)
def test_training_lowers_the_loss(name: str) -> None:
    training = start(small(name, steps=40, warmup_steps=4, auto_augment=False))
    before = training.evaluate()["test_loss"]
    for index in range(40):
        training.step(index)
    assert training.evaluate()["test_loss"] < 0.9 * before


@pytest.mark.parametrize("name", SMALL)
def test_a_resumed_run_continues_bit_for_bit(name: str) -> None:
    task = small(name)
    through, resumed = start(task), start(task)
    for index in range(3):
        through.step(index)
    resumed.load_state_dict(copy.deepcopy(through.state_dict()))
    assert [through.step(i).item() for i in (3, 4)] == [resumed.step(i).item() for i in (3, 4)]
    assert through.evaluate() == resumed.evaluate()


@pytest.mark.parametrize("name", SMALL)
def test_a_run_gives_the_same_numbers_twice(name: str) -> None:
    runs = [start(small(name)) for _ in range(2)]
    losses = [[training.step(index).item() for index in range(3)] for training in runs]
    assert losses[0] == losses[1]
    assert runs[0].evaluate() == runs[1].evaluate()


@pytest.mark.parametrize("name", SMALL)
def test_splits_are_balanced_and_disjoint(name: str) -> None:
    task = small(name)
    images, splits = task.images(), task.data()
    for split, each in ((splits.train, "train"), (splits.valid, "valid"), (splits.test, "test")):
        assert set(split[1].bincount().tolist()) == {SMALL[name][f"{each}_per_class"]}
    keys = [[image.numpy().tobytes() for image in split[0]] for split in (splits.train, splits.valid, splits.test)]
    assert len(set(keys[0] + keys[1] + keys[2])) == len(keys[0] + keys[1] + keys[2])
    last_of_class_7 = images.train[images.train_labels == 7][-1].permute(2, 0, 1)
    assert last_of_class_7.numpy().tobytes() in keys[1]


@pytest.mark.parametrize("setting", [{"train_per_class": 22}, {"valid_per_class": 6}, {"test_per_class": 9}])
def test_too_many_images_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="too many; there are 25 and 8"):
        small("cifar10-vit", **setting).data()


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_is_smoothed_in_training_and_in_the_report(name: str) -> None:
    task = small(name)
    batch = task.data().test
    model = task.model().eval()
    log_probabilities = model(batch[0]).log_softmax(1)
    right = log_probabilities.gather(1, batch[1][:, None])
    expected = -(0.9 * right + 0.1 * log_probabilities.mean(1, keepdim=True)).mean()
    for loss in (task.loss(model, batch), task.measures(model, batch)["loss"]):
        torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("auto_augment", [False, True])
def test_augmentation_keeps_shape_and_labels(auto_augment: bool) -> None:
    task = small("cifar10-vit", auto_augment=auto_augment)
    images, labels = task.data().train
    torch.manual_seed(0)
    changed, same = task.augment((images, labels))
    assert changed.dtype == torch.uint8
    assert changed.shape == images.shape
    assert torch.equal(same, labels)
    grey = (changed == 128).all(1).flatten(1).float().mean(1)  # what AutoAugment moves in from outside
    assert (grey.max() > 0.2) == auto_augment


@pytest.mark.parametrize(("task", "count"), [(Cifar10ViT, 6_268_810), (Cifar100ResNet, 23_705_252)])
def test_the_network_at_scale_paper_is_the_papers(task: type[Cifar], count: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in task.at_scale("paper").model().parameters()) == count


@pytest.mark.parametrize("task", [Cifar10ViT, Cifar100ResNet])
def test_the_schedule_at_scale_paper_is_the_papers(task: type[Cifar]) -> None:
    at = task.at_scale("paper")
    classes = 10 if task is Cifar10ViT else 100
    epoch = classes * at.train_per_class // at.batch_size
    assert (at.steps, at.warmup_steps, at.evaluate_every) == (100 * epoch, 5 * epoch, epoch)
    assert at.learning_rate(at.warmup_steps - 1, at.lr) == at.lr
    assert math.isclose(at.learning_rate(at.steps, at.lr), 1e-5)


def test_pixels_are_standardized() -> None:
    standardize, _ = Cifar10ViT.at_scale("mini").model().children()
    white = standardize(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))
    expected = (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2470, 0.2435, 0.2616])
    torch.testing.assert_close(white[0, :, 0, 0], expected)
