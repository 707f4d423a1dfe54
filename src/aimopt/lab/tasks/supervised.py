"""Tasks with examples: given data, a model and a loss, everything else of a training loop.

    @dataclass(frozen=True, kw_only=True)
    class Spirals(Supervised):
        title = "Two spirals"
        lr: float = 1e-2
        steps: int = 300

        def data(self): return Splits(train=(x, y), valid=(xv, yv), test=(xt, yt))
        def model(self): return nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 2))

The loss defaults to cross-entropy. The examples of a step are a function of (seed, step): an epoch is a permutation of
the training set, and what is left over at its end is dropped.
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

from aimopt.lab.optimizers import load_state
from aimopt.lab.randomness import generator, seed_everything
from aimopt.lab.tasks.task import Context, Measure, Task

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Splits:
    """Examples, as tensors whose first index is the example. The search sees no test data."""

    train: Batch
    valid: Batch
    test: Batch

    @cached_property
    def checksum(self) -> str:
        """Of all bytes, in order."""
        digest = hashlib.sha256()
        for tensor in (*self.train, *self.valid, *self.test):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Supervised(Task):
    """A task with examples, learned by gradient descent on a loss."""

    score: ClassVar[Measure] = Measure("valid_loss", "validation loss")
    measure: ClassVar[Measure] = Measure("test_loss", "test loss")

    steps: int = 1000
    search_steps: int = 1000
    evaluate_every: int = 100
    log_every: int = 10
    batch_size: int = 64
    micro_batches: int = 1  # a batch is taken in so many parts, whose gradients add up; processes share them
    evaluation_batch_size: int = 512
    warmup_steps: int = 0
    last_lr: float = 0.0  # where the cosine ends, unless it begins lower
    weight_decay: float = 0.0
    clip: float | None = None  # the largest norm of the gradient
    precision: Literal["float32", "bfloat16", "float16"] = "float32"

    @abstractmethod
    def data(self) -> Splits:
        """The examples; called once a process and kept."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model; its weights may draw from torch's generator, which is seeded."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What training lowers: the mean over a batch."""
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    def augment(self, batch: Batch) -> Batch:
        """A training batch, changed at random; draws from torch's generator, which is seeded."""
        return batch

    def measures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """What an evaluation gives: means over a batch."""
        return {"loss": self.loss(model, batch)}

    def summary(self, means: dict[str, float]) -> dict[str, float]:
        """What an evaluation gives, from the means over a split."""
        return means

    def learning_rate(self, index: int, peak: float) -> float:
        """The rate of a step: linear warm-up, then a cosine."""
        if index < self.warmup_steps:
            return peak * (index + 1) / self.warmup_steps
        done = (index - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        last = min(peak, self.last_lr)
        return last + (peak - last) * (1 + math.cos(math.pi * done)) / 2

    def options(self, optimizer: str) -> dict[str, Any]:
        return {"weight_decay": self.weight_decay}

    def checksum(self) -> str:
        return examples(self).checksum

    def start(self, context: Context) -> "SupervisedTraining":
        return SupervisedTraining(self, context)


_EXAMPLES: dict[Supervised, Splits] = {}


def examples(task: Supervised) -> Splits:
    """The data of a task, kept while the next runs want the same."""
    if task not in _EXAMPLES:
        _EXAMPLES.clear()
        seed_everything("data")  # the same for all runs, whatever their seed
        _EXAMPLES[task] = task.data()
    return _EXAMPLES[task]


class SupervisedTraining:
    """A supervised task in training."""

    def __init__(self, task: Supervised, context: Context):
        if task.micro_batches % context.processes or task.batch_size % task.micro_batches:
            raise ValueError(
                f"a batch of {task.batch_size} in {task.micro_batches} parts cannot be shared by {context.processes} "
                "processes; choose micro_batches that divides the batch and that the processes divide"
            )
        self.task, self.context, self.splits = task, context, examples(task)
        if len(self.splits.train[0]) < task.batch_size:
            raise ValueError(f"{len(self.splits.train[0])} training examples do not fill a batch of {task.batch_size}")
        seed_everything(context.seed, "weights")
        self.model = task.model().to(context.device)
        if context.processes > 1 and any(isinstance(module, _BatchNorm) for module in self.model.modules()):
            raise ValueError(
                "batch norm would see one process's part of a batch alone; make such runs with one process"
            )
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        optimizer = context.build(named)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.optimizers: Sequence[torch.optim.Optimizer] = (optimizer,)
        self.replica: nn.Module = DistributedDataParallel(self.model) if context.processes > 1 else self.model
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=task.precision == "float16")
        self.order = (-1, torch.empty(0))

    def step(self, index: int) -> Tensor:
        task, (optimizer,) = self.task, self.optimizers
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate(index, group["initial_lr"])
        self.model.train()
        optimizer.zero_grad()
        total = torch.zeros((), device=self.context.device)
        mine = range(self.context.rank, task.micro_batches, self.context.processes)
        for part in mine:
            seed_everything(self.context.seed, "step", index, part)
            batch = task.augment(self._batch(index, part))
            with self._gradients_added(last=part == mine[-1]), self._autocast():
                loss = task.loss(self.replica, batch)
                self.scaler.scale(loss / len(mine)).backward()
            total += loss.detach() / len(mine)
        if task.clip is not None:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), task.clip)
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.context.processes > 1:
            torch.distributed.all_reduce(total)
            total /= self.context.processes
        return total

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        return {
            f"{split}_{name}": value
            for split in ("valid", "test")
            for name, value in self.task.summary(self._means(getattr(self.splits, split))).items()
        }

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
        epoch, place = divmod(index, per_epoch)
        if self.order[0] != epoch:
            order = generator(self.context.seed, "order", epoch)
            self.order = epoch, torch.randperm(len(self.splits.train[0]), generator=order)
        length = size // self.task.micro_batches
        chosen = self.order[1][place * size + part * length :][:length]
        return tuple(tensor[chosen].to(self.context.device) for tensor in self.splits.train)

    def _means(self, split: Batch) -> dict[str, float]:
        totals: dict[str, Tensor] = {}
        for batch in self._pieces(split):
            with self._autocast():
                measured = self.task.measures(self.model, batch)
            for name, value in measured.items():
                total = value.double() * len(batch[0])
                totals[name] = totals[name] + total if name in totals else total
        shares = self._told({name: total.item() for name, total in totals.items()})
        names = dict.fromkeys(name for share in shares for name in share)
        return {name: sum(share.get(name, 0.0) for share in shares) / len(split[0]) for name in names}

    def _pieces(self, split: Batch) -> Iterator[Batch]:
        """This process's share of a split."""
        pieces = list(zip(*(tensor.split(self.task.evaluation_batch_size) for tensor in split), strict=True))
        for piece in pieces[self.context.rank :: self.context.processes]:
            yield tuple(tensor.to(self.context.device) for tensor in piece)

    def _told(self, mine: dict[str, float]) -> list[dict[str, float]]:
        """What each process says."""
        if self.context.processes == 1:
            return [mine]
        shares: list[Any] = [None] * self.context.processes
        torch.distributed.all_gather_object(shares, mine)
        return shares

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.task.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.context.device.type, getattr(torch, self.task.precision))

    def _gradients_added(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Processes exchange their gradients once a step."""
        if isinstance(self.replica, DistributedDataParallel) and not last:
            return self.replica.no_sync()
        return contextlib.nullcontext()
