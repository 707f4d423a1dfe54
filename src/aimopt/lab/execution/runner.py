"""The runner: trains one run from its config or its last checkpoint, and writes the result to the store.

    train_run(config, Store("results"))                     "finished", "diverged" or "failed"
    train_run(config, store, should_stop=event.is_set)      "stopped" after a checkpoint, if the event is set
    train_run(config, store)                                "busy" while another process trains the same run

A run that is killed at any moment is resumed from its last checkpoint and ends with the same bits as a run that was
not: all of its state is in the checkpoint, and the random numbers of a step are a function of (seed, step).
"""

import hashlib
import math
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor

from aimopt.lab.execution.distributed import World
from aimopt.lab.execution.resources import Resources
from aimopt.lab.protocol import import_paths, optimizers
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.schema import fields, integer, list_of, map_of, number
from aimopt.lab.protocol.task import Context, Training
from aimopt.lab.protocol.user_code import explain
from aimopt.lab.results import sessions
from aimopt.lab.results.json_files import DamagedFile
from aimopt.lab.results.run import LARGEST
from aimopt.lab.results.store import ClaimLost, RunWriter, Store
from aimopt.measure.memory import peak_bytes, reset_peak

# How a call of `train_run` ends. `busy`: another process trains the run. `stopped`: it can be resumed.
Outcome = Literal["finished", "diverged", "failed", "busy", "stopped"]
LogEntry = dict[str, float]
METRICS_SECONDS = 1.0  # between two updates of metrics.jsonl, by which others watch a run
CHECKPOINT_SHAPE = fields({
    "step": integer(0),
    "seconds": number(),
    "summed": integer(0),
    "history": list_of(map_of(number())),
})  # fmt: skip
CHECKPOINT_SHARE = 0.05  # at most this share of the time is spent on checkpoints


class Stopped(Exception):
    """The run was asked to stop."""


class Diverged(Exception):
    """A loss or a measure of the run is no longer finite, or nearly so."""


# Errors during resumed training that do not show that the checkpoint is bad.
UNRELATED_TO_CHECKPOINT = (OSError, MemoryError, torch.OutOfMemoryError, Stopped, ClaimLost, Diverged)


def train_run(
    config: RunConfig,
    store: Store,
    *,
    device: str = "cpu",
    checkpoint_seconds: float = Resources.checkpoint_seconds,
    keep_weights: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train a run to its end; return at once if it has a result. An error becomes its result, with the reason."""
    world = World.join(device)
    writer, known_outcome = _claim_run(config, store) if world.rank == 0 else (store.follow_run(config), None)
    known_outcome = world.broadcast(known_outcome)
    if known_outcome is not None:
        return known_outcome
    assert writer is not None
    loop: TrainingLoop | None = None
    try:
        writer.begin(config)
        import_paths.check_sources(config.sources)
        loop = TrainingLoop(config, writer, world, world.device(device), checkpoint_seconds, should_stop)
        outcome, reason = loop.train()
        if keep_weights:
            writer.write_weights(loop.training.weights())
        writer.write_result(outcome, reason, loop.history, loop.measurements())
        return outcome
    except Stopped:
        return "stopped"
    except ClaimLost:
        return "busy"
    except Exception as error:  # of the task, the optimizer or the disk: it is recorded, and the sweep goes on
        try:
            writer.write_result(
                "failed", explain(error), loop.history if loop else [], {"traceback": traceback.format_exc()}
            )
        except ClaimLost:
            return "busy"
        if world.size > 1:
            raise  # the other processes wait for this one: torchrun ends them
        return "failed"
    finally:
        writer.release()


def _measured(name: str, value: Any) -> float:
    """A measure of `evaluate`, as the number that is stored."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"evaluate() must return a number per measure, got {name}={value!r}") from None


def record_failure(config: RunConfig, store: Store, reason: str) -> str:
    """Record the failure of a run that could not do so itself. Returns the reason, with the error if writing fails."""
    try:
        writer = store.claim_run(config)
        if writer is not None:
            try:
                writer.begin(config)
                writer.write_result("failed", reason, [], {})
            finally:
                writer.release()
    except (OSError, ClaimLost, DamagedFile) as error:
        return f"{reason} ({explain(error)})"
    return reason


def start_training(config: RunConfig, device: torch.device, world: World = World()) -> Training:  # noqa: B008, it is frozen
    """The training of a run before its first step."""

    def make_optimizer(model: optimizers.Model) -> torch.optim.Optimizer:
        return optimizers.make(config.optimizer, model, lr=config.lr, options=config.options)

    return config.make_task().start(
        Context(
            seed=config.seed,
            make_optimizer=make_optimizer,
            device=device,
            rank=world.rank,
            processes=world.size,
            steps=config.steps,
        )
    )


class TrainingLoop:
    """Trains one run: steps, records, evaluations, checkpoints."""

    def __init__(
        self,
        config: RunConfig,
        writer: RunWriter,
        world: World,
        device: torch.device,
        checkpoint_seconds: float,
        should_stop: Callable[[], bool],
    ):
        self.config, self.writer, self.device, self.should_stop = config, writer, device, should_stop
        self.task, self.history = config.make_task(), list[LogEntry]()
        reset_peak(device)
        self.world = world
        self._start()
        self.initial_checksum = checksum(self.training.weights())
        self._resume()
        self.data_checksum = self.task.checksum()
        if self.step and self.data_checksum not in [session.get("data") for session in writer.sessions()]:
            raise ValueError(
                "the data have changed since the run was started; restore them, or delete the folder of the run"
            )
        self._record_session()
        self.last_metrics = self.last_checkpoint = time.monotonic()
        self.checkpoint_seconds = self.checkpoint_interval = checkpoint_seconds

    def train(self) -> tuple[Literal["finished", "diverged"], str]:
        """Train to the last step. The result is the status, and the reason if the run diverged."""
        try:
            while self.step < self.config.steps:
                try:
                    self._train_until_logged()
                    self._log()
                except UNRELATED_TO_CHECKPOINT:
                    raise
                except Exception as error:  # of the task or the optimizer, possibly on a state that does not fit
                    self._restart_without_checkpoint(error)
                    continue
                self.resumed_untested = False
                self._save_if_due()
        except Diverged as diverged:
            return "diverged", str(diverged)
        return "finished", ""

    def measurements(self) -> dict[str, Any]:
        """What was measured besides the history."""
        trained = self.training.weights()
        states = [state for o in self.training.optimizers for state in o.state.values() if isinstance(state, Mapping)]
        return {
            "seconds": self.seconds,
            "steps": self.step,
            "parameters": sum(p.numel() for o in self.training.optimizers for g in o.param_groups for p in g["params"]),
            "state_bytes": sum(x.nbytes for state in states for x in state.values() if isinstance(x, Tensor)),
            "peak_bytes": peak_bytes(self.device),
            "initial": self.initial_checksum,
            "final": checksum(trained),
            **self._test_noise(),
        }

    def _test_noise(self) -> dict[str, dict[str, list[float]]]:
        """The noise of the test set, if the task knows it. It is no part of the result: it cannot make a run fail."""
        if self.step < self.config.steps or not hasattr(self.training, "test_without_parts"):
            return {}
        try:
            by_measure = self.training.test_without_parts()
            without_parts = {name: [float(value) for value in values] for name, values in by_measure.items()}
        except Exception:  # a task may be unable to evaluate small batches
            return {}
        finite = {name: values for name, values in without_parts.items() if all(map(math.isfinite, values))}
        return {"test_without_parts": finite} if finite else {}

    def state_dict(self) -> dict[str, Any]:
        """The whole state of the run."""
        return {
            "training": self.training.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.loss_sum,
            "summed": self.loss_count,
            "history": self.history,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.training.load_state_dict(state["training"])
        CHECKPOINT_SHAPE({name: state[name] for name in ("step", "seconds", "summed", "history")}, "a checkpoint")
        if state["step"] > self.config.steps:
            raise ValueError(f"it is at step {state['step']}, but the run has {self.config.steps} steps")
        self.step, self.seconds, self.loss_count = state["step"], state["seconds"], state["summed"]
        self.loss_sum = state["losses"].to(self.device).reshape(())
        self.history = state["history"]

    def _start(self) -> None:
        """Set the state before the first step."""
        self.training = start_training(self.config, self.device, self.world)
        self.step, self.seconds, self.loss_count, self.history = 0, 0.0, 0, list[LogEntry]()
        self.loss_sum = torch.zeros((), device=self.device)
        self.resumed_untested = False  # whether no step was trained yet after a checkpoint was loaded

    def _resume(self) -> None:
        """Load the last checkpoint. If it cannot be loaded, start from the beginning."""
        state = self.writer.read_checkpoint()
        if state is None:
            return
        try:
            self.load_state_dict(state)
            self.resumed_untested = True
        except UNRELATED_TO_CHECKPOINT:
            raise
        except Exception as error:  # of the task or the optimizer, on a state of something else
            self.writer.discard_checkpoint(error)
            self._start()

    def _restart_without_checkpoint(self, error: Exception) -> None:
        """Discard a checkpoint that can be loaded but not trained on. Any other error is raised again.

        This is done once per run: an optimizer that always raises at some step would otherwise train up to it again and
        again. Processes that torchrun started cannot restart by themselves.
        """
        if not self.resumed_untested or self.world.size > 1 or self.writer.notes():
            raise error
        self.writer.discard_checkpoint(error)
        self._start()
        self._record_session()

    def _record_session(self) -> None:
        """Record the provenance of this process, and the step from which it trains."""
        packages = self.task.packages
        self.writer.add_session(
            sessions.describe_session(self.device, self.data_checksum, self.step, self.world.size, packages)
        )

    def _train_until_logged(self) -> None:
        begin = time.perf_counter()
        while True:
            if self.should_stop():
                self.seconds += time.perf_counter() - begin
                self.writer.write_checkpoint(self.state_dict())
                self.writer.write_metrics(self.history)
                raise Stopped
            self.loss_sum = self.loss_sum + self.training.step(self.step).detach().float()
            self.step, self.loss_count = self.step + 1, self.loss_count + 1
            if self.step % self.task.log_every == 0 or self._evaluation_due():
                break
        self.loss_sum.item()  # wait for the device, so that the time is right
        self.seconds += time.perf_counter() - begin

    def _log(self) -> None:
        """Append a record: the mean loss since the last record, and the measures if an evaluation is due."""
        record: LogEntry = {
            "step": self.step,
            "train_loss": self.loss_sum.item() / self.loss_count,
            "lr": float(self.training.optimizers[0].param_groups[0]["lr"]),
            "seconds": self.seconds,
        }
        self.loss_sum, self.loss_count = torch.zeros_like(self.loss_sum), 0
        if self._evaluation_due():
            record |= {name: _measured(name, value) for name, value in self.training.evaluate().items()}
        for name, value in record.items():
            if not abs(value) <= LARGEST:
                raise Diverged(f"{name} was {value} at step {self.step}")
        self.history.append(record)

    def _evaluation_due(self) -> bool:
        return self.step % self.task.evaluate_every == 0 or self.step == self.config.steps

    def _save_if_due(self) -> None:
        now = time.monotonic()
        if now - self.last_checkpoint >= self.checkpoint_interval:
            self.writer.write_checkpoint(self.state_dict())
            self.last_checkpoint = time.monotonic()
            self.checkpoint_interval = max(self.checkpoint_seconds, (self.last_checkpoint - now) / CHECKPOINT_SHARE)
        if now - self.last_metrics >= METRICS_SECONDS:
            self.writer.write_metrics(self.history)
            self.last_metrics = now


def checksum(weights: Mapping[str, Tensor]) -> str:
    """A checksum of the names and the bits of the weights."""
    digest = hashlib.sha256()
    for name, tensor in weights.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _claim_run(config: RunConfig, store: Store) -> tuple[RunWriter | None, Outcome | None]:
    """Claim a run; or the outcome if there is nothing to do."""
    if (outcome := _settled_outcome(config, store)) is not None:
        return None, outcome
    writer = store.claim_run(config)
    if writer is None:
        return None, "busy"
    if (outcome := _settled_outcome(config, store)) is not None:  # another process was faster than the claim
        writer.release()
        return None, outcome
    return writer, None


def _settled_outcome(config: RunConfig, store: Store) -> Outcome | None:
    run = store.run(config)
    return cast(Outcome, run.status) if run is not None and run.settled else None
