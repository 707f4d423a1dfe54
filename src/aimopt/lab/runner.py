"""Train one run from its configuration, from where it was left, and keep what comes of it.

    run(config, Store("results"))              "finished", "diverged", "failed", …; at once if it was over already

A run that is killed at any moment resumes from its last checkpoint and ends with the same bits as one that was not: all
of its state is in the checkpoint, and what a step draws is a function of (seed, step).
"""

import hashlib
import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from aimopt.bench.memory import forget_peak, peak_bytes
from aimopt.lab import optimizers, provenance, references
from aimopt.lab.config import RunConfig
from aimopt.lab.distributed import World
from aimopt.lab.shapes import fields, list_of, map_of, number, whole
from aimopt.lab.store import Store, TakenOver, Work
from aimopt.lab.tasks import Context, Training
from aimopt.lab.user_code import explain as explain  # who makes runs explains them too

# `busy`: another process works on it. `stopped`: it was asked to stop and can be resumed.
Outcome = Literal["finished", "diverged", "failed", "busy", "stopped"]
Record = dict[str, float]
METRICS_SECONDS = 1.0  # how often others can see how a run goes
CHECKPOINT = fields({
    "step": whole(0),
    "seconds": number(),
    "summed": whole(0),
    "history": list_of(map_of(number())),
})  # fmt: skip
CHECKPOINT_SHARE = 0.05  # of the time that may go into checkpoints


class Stopped(Exception):
    """The run was asked to stop."""


class Diverged(Exception):
    """A number of the run is no longer finite."""


# What going on from a checkpoint may raise without the checkpoint being the cause.
NOT_OF_THE_CHECKPOINT = (OSError, MemoryError, torch.OutOfMemoryError, Stopped, TakenOver, Diverged)


def run(
    config: RunConfig,
    store: Store,
    *,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    keep_weights: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train a run to its end, unless it is there already. What goes wrong with it is its result, with the reason."""
    world = World.joined(device)
    work, over = _claim(config, store) if world.rank == 0 else (store.spectate(config), None)
    over = world.agree(over)
    if over is not None:
        return over
    assert work is not None
    running: Running | None = None
    try:
        work.begin(config)
        references.check_sources(config.sources)
        running = Running(config, work, world, world.device(device), checkpoint_seconds, should_stop)
        outcome, reason = running.train()
        if keep_weights:
            work.weights(running.training.weights())
        work.result(outcome, reason, running.history, running.facts())
        return outcome
    except Stopped:
        return "stopped"
    except TakenOver:
        return "busy"
    except (
        Exception
    ) as error:  # whatever a task, an optimizer or the disk raises: the sweep goes on, the reason is kept
        work.result("failed", explain(error), running.history if running else [], {"traceback": traceback.format_exc()})
        if world.size > 1:
            raise  # the other processes wait for this one: torchrun ends them
        return "failed"
    finally:
        work.release()


def record_failure(config: RunConfig, store: Store, reason: str) -> str:
    """Keep why a run failed that could not say so itself; the result says too if even that cannot be written."""
    try:
        work = store.work(config)
        if work is not None:
            try:
                work.begin(config)
                work.result("failed", reason, [], {})
            finally:
                work.release()
    except (OSError, TakenOver) as error:
        return f"{reason} ({explain(error)})"
    return reason


def start(config: RunConfig, device: torch.device, world: World = World()) -> Training:  # noqa: B008, it is frozen
    """A run's training, before its first step."""

    def build(parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
        return optimizers.make(config.optimizer, parameters, lr=config.lr, options=config.options)

    return config.make_task().start(
        Context(seed=config.seed, build=build, device=device, rank=world.rank, processes=world.size)
    )


class Running:
    """A run under way."""

    def __init__(
        self,
        config: RunConfig,
        work: Work,
        world: World,
        device: torch.device,
        checkpoint_seconds: float,
        should_stop: Callable[[], bool],
    ):
        self.config, self.work, self.device, self.should_stop = config, work, device, should_stop
        self.task, self.history = config.make_task(), list[Record]()
        forget_peak(device)
        self.world = world
        self._begin()
        self.initial = checksum(self.training.weights())
        self._resume()
        self.data = self.task.checksum()
        if self.step and self.data not in [session.get("data") for session in work.sessions()]:
            raise ValueError(
                "the data have changed since the run was begun; put the old ones back, or delete its folder"
            )
        self._join()
        self.shown = self.saved = time.monotonic()
        self.checkpoint_seconds = self.save_after = checkpoint_seconds

    def train(self) -> tuple[Literal["finished", "diverged"], str]:
        """Go on to the end; with the reason if the run diverged."""
        try:
            while self.step < self.config.steps:
                try:
                    self._train_until_logged()
                    self._log()
                except NOT_OF_THE_CHECKPOINT:
                    raise
                except Exception as error:  # whatever the task and the optimizer raise on a state that does not fit
                    self._begin_again(error)
                    continue
                self.resumed = False
                self._save_now_and_then()
        except Diverged as diverged:
            return "diverged", str(diverged)
        return "finished", ""

    def facts(self) -> dict[str, Any]:
        """What is known of a run besides its curves."""
        trained = self.training.weights()
        states = [state for o in self.training.optimizers for state in o.state.values() if isinstance(state, Mapping)]
        return {
            "seconds": self.seconds,
            "steps": self.step,
            "parameters": sum(p.numel() for o in self.training.optimizers for g in o.param_groups for p in g["params"]),
            "state_bytes": sum(x.nbytes for state in states for x in state.values() if isinstance(x, Tensor)),
            "peak_bytes": peak_bytes(self.device),
            "initial": self.initial,
            "final": checksum(trained),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs."""
        return {
            "training": self.training.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.losses,
            "summed": self.summed,
            "history": self.history,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.training.load_state_dict(state["training"])
        CHECKPOINT({name: state[name] for name in ("step", "seconds", "summed", "history")}, "a checkpoint")
        if state["step"] > self.config.steps:
            raise ValueError(f"it is at step {state['step']} of a run of {self.config.steps}")
        self.step, self.seconds, self.summed = state["step"], state["seconds"], state["summed"]
        self.losses = state["losses"].to(self.device).reshape(())
        self.history = state["history"]

    def _begin(self) -> None:
        """Be before the first step."""
        self.training = start(self.config, self.device, self.world)
        self.step, self.seconds, self.summed, self.history = 0, 0.0, 0, list[Record]()
        self.losses = torch.zeros((), device=self.device)
        self.resumed = False  # whether the checkpoint has yet to show that it can be trained on

    def _resume(self) -> None:
        """Go on from the last checkpoint; from the beginning if it cannot be loaded."""
        state = self.work.resume()
        if state is None:
            return
        try:
            self.load_state_dict(state)
            self.resumed = True
        except NOT_OF_THE_CHECKPOINT:
            raise
        except Exception as error:  # whatever the task and the optimizer raise on a state that is not theirs
            self.work.discard_checkpoint(error)
            self._begin()

    def _begin_again(self, error: Exception) -> None:
        """Leave a checkpoint that loads but cannot be trained on; any other error is the run's own.

        Once in the life of a run: an optimizer that always raises at some step would train up to it at every command.
        Processes of one run that torchrun started cannot begin again by themselves.
        """
        if not self.resumed or self.world.size > 1 or self.work.notes():
            raise error
        self.work.discard_checkpoint(error)
        self._begin()
        self._join()

    def _join(self) -> None:
        """Say who works on the run, and from which step on."""
        self.work.join(provenance.session(self.device, self.data, self.step, self.world.size))

    def _train_until_logged(self) -> None:
        begin = time.perf_counter()
        while True:
            if self.should_stop():
                self.seconds += time.perf_counter() - begin
                self.work.checkpoint(self.state_dict())
                self.work.metrics(self.history)
                raise Stopped
            self.losses = self.losses + self.training.step(self.step).detach().float()
            self.step, self.summed = self.step + 1, self.summed + 1
            if self.step % self.task.log_every == 0 or self._evaluation_due():
                break
        self.losses.item()  # waits for the device
        self.seconds += time.perf_counter() - begin

    def _log(self) -> None:
        """Record the mean loss since the last record, and the measures when they are due."""
        record: Record = {
            "step": self.step,
            "train_loss": self.losses.item() / self.summed,
            "lr": float(self.training.optimizers[0].param_groups[0]["lr"]),
            "seconds": self.seconds,
        }
        self.losses, self.summed = torch.zeros_like(self.losses), 0
        if self._evaluation_due():
            record |= self.training.evaluate()
        for name, value in record.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} was {value} at step {self.step}")
        self.history.append(record)

    def _evaluation_due(self) -> bool:
        return self.step % self.task.evaluate_every == 0 or self.step == self.config.steps

    def _save_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self.saved >= self.save_after:
            self.work.checkpoint(self.state_dict())
            self.saved = time.monotonic()
            self.save_after = max(self.checkpoint_seconds, (self.saved - now) / CHECKPOINT_SHARE)
        if now - self.shown >= METRICS_SECONDS:
            self.work.metrics(self.history)
            self.shown = now


def checksum(weights: Mapping[str, Tensor]) -> str:
    """Of names and values, to the bit."""
    digest = hashlib.sha256()
    for name, tensor in weights.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _claim(config: RunConfig, store: Store) -> tuple[Work | None, Outcome | None]:
    """The right to work on a run, or why there is nothing to do."""
    known = store.run(config)  # sets a corrupt one aside
    if known is not None and known.status in ("finished", "diverged"):
        return None, known.status
    work = store.work(config)
    if work is None:
        return None, "busy"
    known = store.run(config)
    if known is not None and known.status in ("finished", "diverged"):  # by another, between the look and the claim
        work.release()
        return None, known.status
    return work, None
