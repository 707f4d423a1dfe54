"""Supervised tasks: the whole training loop, given data, a model and a loss.

    @dataclass(frozen=True, kw_only=True)
    class Spirals(Supervised):
        title = "Two spirals"
        lr: float = 1e-2
        steps: int = 300

        def data(self): return Splits(train=(x, y), valid=(xv, yv), test=(xt, yt))
        def model(self): return nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 2))

The default loss is cross-entropy. The examples of a step depend only on the seed and the step. An epoch is a
permutation of the training set; an incomplete last batch is dropped. A run evaluates the test set only after its last
step: nothing before uses it, and a test set that is large enough to distinguish optimizers takes time.
"""

import contextlib
import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from aimopt.lab.protocol.optimizers import evaluating, load_state, needs_closure
from aimopt.lab.protocol.randomness import generator, seed_everything
from aimopt.lab.protocol.task import Context, Measure, Task

Batch = tuple[Tensor, ...]
NOISE_PARTS = 50  # parts of the test set from which its noise is estimated, with an error of about a tenth
FEWEST_PARTS = 10
NOISE_EXAMPLES = 2000  # at most, so that a large test set is not evaluated twice


@dataclass(frozen=True)
class Splits:
    """Examples as tensors; the first index is the example. The search does not use `test`."""

    train: Batch
    valid: Batch
    test: Batch

    @cached_property
    def checksum(self) -> str:
        """The checksum of all types, shapes and values, in order."""
        digest = hashlib.sha256()
        for tensor in (*self.train, *self.valid, *self.test):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Supervised(Task):
    """A task with examples and a loss."""

    score: ClassVar[Measure] = Measure("valid_loss", "validation loss")
    measure: ClassVar[Measure] = Measure("test_loss", "test loss")
    gives_closures: ClassVar[bool] = True

    steps: int = 1000
    evaluate_every: int = 100
    log_every: int = 10
    batch_size: int = 64
    micro_batches: int = 1  # number of parts of a batch; their gradients are added; processes share them
    evaluation_batch_size: int = 512
    warmup_steps: int = 0
    last_lr: float = 0.0  # where the cosine ends; a lower peak stays constant
    clip: float | None = None  # largest norm of the gradient; None: no clipping
    precision: Literal["float32", "bfloat16", "float16"] = "float32"

    @abstractmethod
    def data(self) -> Splits:
        """The examples; called once per process."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model; random weights come from torch's generator, which is seeded."""

    def random_examples(self) -> Splits | None:
        """Random examples of the usual shapes, for a timing where the data are missing; None: there are none.

        `train` fills a batch; the other splits are as large as the real ones.
        """
        return None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss that training minimizes: the mean over a batch."""
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    def augment(self, batch: Batch) -> Batch:
        """A training batch with random changes; they come from torch's generator, which is seeded."""
        return batch

    def measures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The measures of an evaluation batch: means over its examples."""
        return {"loss": self.loss(model, batch)}

    def summary(self, means: dict[str, float]) -> dict[str, float]:
        """The results of an evaluation, from the means over a split."""
        return means

    def learning_rate(self, index: int, peak: float) -> float:
        """The learning rate of a step: linear warm-up, then a cosine."""
        if index < self.warmup_steps:
            return peak * (index + 1) / self.warmup_steps
        fraction = (index - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        last = min(peak, self.last_lr)
        return last + (peak - last) * (1 + math.cos(math.pi * fraction)) / 2

    def checksum(self) -> str:
        return load_splits(self).checksum

    def start(self, context: Context) -> "SupervisedTraining":
        return SupervisedTraining(self, context)


_CACHE: dict[Supervised, Splits] = {}  # of the last task


def load_splits(task: Supervised) -> Splits:
    """The data of a task, from the cache if the last run in this process had the same task."""
    if task not in _CACHE:
        _CACHE.clear()
        seed_everything("data")  # the same for all seeds
        _CACHE[task] = task.data()
    return _CACHE[task]


def set_splits(task: Supervised, splits: Splits) -> None:
    """Give a task other data in this process, such as random ones for a timing."""
    _CACHE.clear()
    _CACHE[task] = splits


class SupervisedTraining:
    """A supervised task in training."""

    def __init__(self, task: Supervised, context: Context):
        if task.micro_batches % context.processes or task.batch_size % task.micro_batches:
            raise ValueError(
                f"a batch of {task.batch_size} in {task.micro_batches} parts cannot be shared by {context.processes} "
                "processes; choose micro_batches that divides the batch size and is a multiple of the processes"
            )
        self.task, self.context, self.splits = task, context, load_splits(task)
        if len(self.splits.train[0]) < task.batch_size:
            count = len(self.splits.train[0])
            raise ValueError(f"{count} training examples do not fill a batch of {task.batch_size}; lower batch_size")
        seed_everything(context.seed, "weights")
        self.model = task.model().to(context.device)
        if context.processes > 1 and any(isinstance(module, _BatchNorm) for module in self.model.modules()):
            raise ValueError("batch norm would see only the part of the batch in its process; use one process per run")
        optimizer = context.make_optimizer(self.model)
        if task.precision == "float16" and needs_closure(optimizer):
            raise ValueError("a GradScaler takes no closure, which this optimizer needs; set precision to bfloat16")
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.optimizers: Sequence[torch.optim.Optimizer] = (optimizer,)
        self.replica: nn.Module = DistributedDataParallel(self.model) if context.processes > 1 else self.model
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=task.precision == "float16")
        self.order = (-1, torch.empty(0))
        self.steps_done = 0

    def step(self, index: int) -> Tensor:
        task, (optimizer,) = self.task, self.optimizers
        self.steps_done = index + 1
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate(index, group["initial_lr"])
        self.model.train()
        losses: list[Tensor] = []

        def evaluate_gradients() -> float:
            """The closure: every call evaluates the same batch with the same random numbers."""
            losses.append(self._evaluate_gradients(index))
            return losses[-1].item()

        if needs_closure(optimizer):
            optimizer.step(evaluate_gradients)
        else:
            losses.append(self._evaluate_gradients(index))
            self.scaler.step(optimizer)
        self.scaler.update()
        total = losses[0]  # before the step
        if self.context.processes > 1:
            torch.distributed.all_reduce(total)
            total /= self.context.processes
        return total

    def _evaluate_gradients(self, index: int) -> Tensor:
        """Set the gradients of a step's batch, clipped; returns its loss."""
        task, (optimizer,) = self.task, self.optimizers
        optimizer.zero_grad()
        total = torch.zeros((), device=self.context.device)
        parts = range(self.context.rank, task.micro_batches, self.context.processes)
        for part in parts:
            seed_everything(self.context.seed, "step", index, part)
            batch = task.augment(self._batch(index, part))
            with self._exchange_gradients(last=part == parts[-1]), self._autocast():
                loss = task.loss(self.replica, batch)
                self.scaler.scale(loss / len(parts)).backward()
            total += loss.detach() / len(parts)
        if task.clip is not None:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), task.clip)
        return total

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        last = self.context.steps is None or self.steps_done >= self.context.steps
        with evaluating(self.optimizers):
            means = {split: self._split_means(getattr(self.splits, split)) for split in ("valid", "test")[: 1 + last]}
        return {
            f"{split}_{name}": value
            for split, of_split in means.items()
            for name, value in self.task.summary(of_split).items()
        }

    @torch.no_grad()
    def test_without_parts(self) -> dict[str, list[float]]:
        """Per test measure, its values without each of several parts of the test set: they show its noise.

        Examples are taken to be independent of each other. Some of them are cut into parts at random, the same parts in
        every run. The values are spread as if the parts made up the whole test set, so that their jackknife error is
        that of the whole. Empty if there are few examples, or several processes.
        """
        examples = len(self.splits.test[0])
        count = min(NOISE_PARTS, examples)
        if count < FEWEST_PARTS or self.context.processes > 1:
            return {}
        order = torch.randperm(examples, generator=generator("test examples"))
        size = min(examples, NOISE_EXAMPLES) // count
        self.model.eval()
        with evaluating(self.optimizers):
            means = [
                self._split_means(tuple(tensor[part] for tensor in self.splits.test))
                for part in order[: size * count].split(size)
            ]
        without_part: dict[str, list[float]] = {}
        for left_out in range(count):
            kept = means[:left_out] + means[left_out + 1 :]
            summary = self.task.summary({name: sum(m[name] for m in kept) / len(kept) for name in kept[0]})
            for name, value in summary.items():
                without_part.setdefault(f"test_{name}", []).append(value)
        share = math.sqrt(size * count / examples)
        finite = {name: values for name, values in without_part.items() if all(map(math.isfinite, values))}
        return {name: _shrunk(values, share) for name, values in finite.items()}

    def weights(self) -> Mapping[str, Tensor]:
        return self.model.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizers[0].state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_state(self.optimizers[0], state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def _batch(self, index: int, part: int) -> Batch:
        """One part of the batch of a step."""
        size, per_epoch = self.task.batch_size, len(self.splits.train[0]) // self.task.batch_size
        epoch, batch_in_epoch = divmod(index, per_epoch)
        if self.order[0] != epoch:
            order = generator(self.context.seed, "order", epoch)
            self.order = epoch, torch.randperm(len(self.splits.train[0]), generator=order)
        length = size // self.task.micro_batches
        chosen = self.order[1][batch_in_epoch * size + part * length :][:length]
        return tuple(tensor[chosen].to(self.context.device) for tensor in self.splits.train)

    def _split_means(self, split: Batch) -> dict[str, float]:
        totals: dict[str, Tensor] = {}
        for batch in self._evaluation_batches(split):
            with self._autocast():
                measured = self.task.measures(self.model, batch)
            for name, value in measured.items():
                total = value.double() * len(batch[0])
                totals[name] = totals[name] + total if name in totals else total
        by_process = self._gather_from_processes({name: total.item() for name, total in totals.items()})
        names = dict.fromkeys(name for sums in by_process for name in sums)
        return {name: sum(sums.get(name, 0.0) for sums in by_process) / len(split[0]) for name in names}

    def _evaluation_batches(self, split: Batch) -> Iterator[Batch]:
        """The batches of a split that this process evaluates."""
        batches = list(zip(*(tensor.split(self.task.evaluation_batch_size) for tensor in split), strict=True))
        for batch in batches[self.context.rank :: self.context.processes]:
            yield tuple(tensor.to(self.context.device) for tensor in batch)

    def _gather_from_processes(self, sums: dict[str, float]) -> list[dict[str, float]]:
        """The sums of all processes, by rank."""
        if self.context.processes == 1:
            return [sums]
        by_process: list[Any] = [None] * self.context.processes
        torch.distributed.all_gather_object(by_process, sums)
        return by_process

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.task.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.context.device.type, getattr(torch, self.task.precision))

    def _exchange_gradients(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """A context in which `backward` exchanges gradients between processes only for the last part of a batch."""
        if isinstance(self.replica, DistributedDataParallel) and not last:
            return self.replica.no_sync()
        return contextlib.nullcontext()


def _shrunk(values: Sequence[float], factor: float) -> list[float]:
    """The values nearer to their mean by this factor, with as many digits as their noise needs."""
    mean = math.fsum(values) / len(values)
    return [float(f"{mean + factor * (value - mean):.9g}") for value in values]
