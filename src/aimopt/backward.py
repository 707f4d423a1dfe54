"""Step in backward: each parameter moves as soon as its gradient is complete, and its gradient is freed.

    handle = aimopt.in_backward(optimizer, model)
    for batch in batches:
        loss_of(model, batch).backward()       the parameters have moved; no gradient is left
        optimizer.step()                       ends the step, as usual before scheduler.step()

    with handle.accumulating(): …              backward passes that only add up gradients
    aimopt.in_backward(…, max_norm=1.0)        clipping, by a norm that is known before the last gradient is
    handle.remove()                            the usual loop again

The result is that of the usual loop, to the bit if the step is element-wise. Small gradients wait for each other until
they fill a bucket, so that a thousand small parameters do not need a thousand calls of a kernel.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.variable import Variable
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.hooks import RemovableHandle

from aimopt.aim import AIM
from aimopt.parts.component import is_finite
from aimopt.parts.composition import Parts
from aimopt.step.gather import parameter_name

BUCKET_BYTES = 2**20  # a kernel takes longer for a bucket of this size than Python for its call


def in_backward(
    optimizer: AIM, model: nn.Module, *, max_norm: float | None = None, bucket_bytes: int = BUCKET_BYTES
) -> "InBackward":
    """Let `optimizer` step the parameters of `model` during backward, until `remove` of the result is called.

    Args:
        optimizer: an optimizer of this package, also one of `groups.combine`.
        model: the module with all parameters of the optimizer.
        max_norm: clip gradients to this norm. The norm of all gradients is not known when the first parameters move, so
            each is scaled by max_norm/n, if that is below 1, where n is the larger of two norms: that of all gradients
            of the last step, and that of the gradients of this step so far.
        bucket_bytes: the size of gradients from which on they do not wait for others; 0 steps each parameter alone.
    """
    if not isinstance(optimizer, AIM):
        raise ValueError(f"in_backward takes an optimizer of this package, got {type(optimizer).__name__}")
    if not isinstance(model, nn.Module):
        raise ValueError(f"in_backward takes the model, a torch.nn.Module, got {type(model).__name__}")
    if optimizer._in_backward is not None:
        raise ValueError("in_backward: this optimizer is stepped in backward already; call remove() of its handle")
    if max_norm is not None and not (is_finite(max_norm) and max_norm > 0):
        raise ValueError(f"in_backward: max_norm must be a finite number above 0, got {max_norm!r}")
    if not (is_finite(bucket_bytes) and bucket_bytes >= 0):
        raise ValueError(f"in_backward: bucket_bytes must be a finite number ≥ 0, got {bucket_bytes!r}")
    replicas = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    for replica in replicas:
        refuse_replica(replica, max_norm)
    known = {*map(id, model.parameters())}
    for index, group in enumerate(optimizer.param_groups):
        refuse_group(group, index)
        for i, p in enumerate(group["params"]):
            if id(p) not in known:
                name = parameter_name(group, i, f"group {index}")
                raise ValueError(
                    f"in_backward: {name} of the optimizer is not a parameter of the model; make the optimizer from "
                    "the model's parameters after it was moved or sharded, and pass the module that has all of them"
                )
    return InBackward(optimizer, replicas, max_norm, bucket_bytes)


def refuse_replica(replica: DistributedDataParallel, max_norm: float | None) -> None:
    """Refuse settings with which the processes of a model's replicas could take different steps."""
    if replica.find_unused_parameters:
        raise ValueError(
            "in_backward: find_unused_parameters=True of DistributedDataParallel finds out at the end of backward "
            "which parameters have a gradient; set it to False, or use the usual loop"
        )
    if max_norm is not None:
        raise ValueError(
            "in_backward: with DistributedDataParallel gradients arrive in another order in every process, so that "
            "each would clip by another norm; leave out max_norm, or use fully_shard (FSDP2) or the usual loop"
        )


def refuse_group(group: dict[str, Any], index: int) -> None:
    """Refuse a parameter group whose step needs all gradients at once."""
    try:
        correction = Parts.from_group(group).correction
    except ValueError as error:
        raise ValueError(f"in_backward: group {index}: {error}") from None
    if correction.evaluates_again:
        problem = f"{type(correction).__name__} evaluates the model again within a step; use Direct or iterations=1"
    elif group["skip_nonfinite"]:
        problem = (
            "skip_nonfinite=True cannot skip a step of which the last layers have already moved; set it to False, and "
            "use max_norm against spikes"
        )
    elif group["differentiable"]:
        problem = "differentiable=True needs the gradients after the step; use the usual loop"
    else:
        return
    raise ValueError(f"in_backward: group {index}: {problem}")


@dataclass
class Waiting:
    """The parameters of a backward pass whose gradients are complete, and wait for others to fill a bucket."""

    params: list[Tensor] = field(default_factory=list)
    nbytes: int = 0


class InBackward:
    """An optimizer that steps in backward. `in_backward` makes it."""

    def __init__(
        self,
        optimizer: AIM,
        replicas: Sequence[DistributedDataParallel],
        max_norm: float | None,
        bucket_bytes: int,
    ):
        self.optimizer, self.max_norm, self.bucket_bytes = optimizer, max_norm, bucket_bytes
        self.last_norm: Tensor | None = None  # of all gradients of the last step, before clipping; only with max_norm
        self._accumulating = False
        self._begun = False  # whether a parameter of the present step has moved
        self._moved: set[int] = set()  # the ids of the parameters that have
        self._waiting: dict[int, Waiting] = {}  # by the id of the backward pass
        self._norm: Tensor | None = None  # of the gradients of the present step so far
        self._positions: dict[int, tuple[int, int]] = {}  # by id: group and position in it
        self._lock = RLock()  # backward has one thread per device
        replicated = {id(p) for replica in replicas for p in replica.module.parameters()}
        params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._hooks: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._arrive) for p in params if id(p) not in replicated
        ]
        for replica in replicas:
            replica.register_comm_hook((self, replica.process_group), average_and_move)
            reducer: Any = replica.reducer
            reducer._set_optimizer_in_backward()  # it then leaves gradients to the hook
        optimizer._in_backward = self

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Keep the gradients of the backward passes within: for all micro-batches of a step but the last one."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def remove(self) -> None:
        """Return to the usual loop. Gradients that are still there wait for `optimizer.step()`."""
        for hook in self._hooks:
            hook.remove()
        self._waiting.clear()
        if self.optimizer._in_backward is self:
            self.optimizer._in_backward = None

    def complete(self) -> None:
        """End a step: `optimizer.step()` calls it. Parameters that still have a gradient move now.

        These got it from an earlier micro-batch but not from the last one, or joined the optimizer later.
        """
        with self._lock:
            params = [p for group in self.optimizer.param_groups for p in group["params"]]
            self._move([p for p in params if p.grad is not None])
            self._begin()  # a step in which nothing moves is one too
            for observer in self.optimizer.observers:
                observer.end()
            if self._norm is not None:  # an infinite norm would stop all later steps
                last = torch.zeros_like(self._norm) if self.last_norm is None else self.last_norm
                self.last_norm = torch.where(self._norm.isfinite(), self._norm, last.to(self._norm.device))
            self._norm, self._begun = None, False
            self._moved.clear()
            self._waiting.clear()  # of a backward pass that failed: it did not come to its end

    def refuse_scaler(self) -> None:
        """Raise: a GradScaler is about to use the optimizer."""
        raise ValueError(
            f"{type(self.optimizer).__name__} has stepped in backward, with gradients that a GradScaler had not yet "
            "unscaled; use bfloat16, which needs no GradScaler, or the usual loop (remove() of in_backward's handle)"
        )

    def _arrive(self, p: Tensor) -> None:
        """Called by autograd when the gradient of a parameter is complete."""
        if self._accumulating or p.grad is None:
            return
        with self._lock:
            self._refuse_parameter(p)
            backward_pass = torch._C._current_graph_task_id()
            if backward_pass not in self._waiting:
                self._waiting[backward_pass] = Waiting()
                Variable._execution_engine.queue_callback(partial(self._move_waiting, backward_pass))  # at its end
            waiting = self._waiting[backward_pass]
            waiting.params.append(p)
            waiting.nbytes += p.grad.nbytes
            if waiting.nbytes >= self.bucket_bytes:
                self._move_waiting(backward_pass)

    def arrive_averaged(self, params: list[Tensor], grads: list[Tensor]) -> None:
        """Called when a bucket of gradients of DistributedDataParallel is averaged."""
        with self._lock:
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad if p.grad is None else p.grad.copy_(grad)
            if not self._accumulating and self.optimizer._in_backward is self:
                known = [p for p in params if self._place_of(p) is not None]
                for p in known:
                    self._refuse_parameter(p)
                self._move(known)

    def _refuse_parameter(self, p: Tensor) -> None:
        assert p.grad is not None
        if p.grad.requires_grad:
            raise RuntimeError(
                "in_backward: backward(create_graph=True) makes a graph of gradients, which a step in backward would "
                "free; use the usual loop"
            )
        if id(p) in self._moved:
            raise RuntimeError(
                f"in_backward: {self._name_of(p)} got a second gradient in one step, and has moved with the first one. "
                "Call optimizer.step() after each backward pass; put all passes of a step but the last one into `with "
                "handle.accumulating():`; use torch.utils.checkpoint with use_reentrant=False"
            )

    def _move_waiting(self, backward_pass: int) -> None:
        with self._lock:
            waiting = self._waiting.pop(backward_pass, Waiting())
            self._move([p for p in waiting.params if p.grad is not None])

    def _move(self, params: list[Tensor]) -> None:
        """Step these parameters, and free their gradients."""
        positions: dict[int, list[int]] = {}
        for p in params:
            if (place := self._place_of(p)) is not None:  # else it is no longer a parameter of the optimizer
                positions.setdefault(place[0], []).append(place[1])
        if not positions:
            return
        groups = self.optimizer.param_groups
        for index in positions:
            refuse_group(groups[index], index)
        moving = [groups[index]["params"][i] for index, members in positions.items() for i in members]
        self._begin()
        if self.max_norm is not None:
            self._clip(moving, self.max_norm)
        self.optimizer._step_parameters(positions)
        self._moved.update(map(id, moving))
        for p in moving:
            p.grad = None

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            for observer in self.optimizer.observers:
                observer.begin(len(self.optimizer.param_groups))

    def _clip(self, params: Iterable[Tensor], max_norm: float) -> None:
        params = list(params)
        norm: Any = get_total_norm([p.grad for p in params if p.grad is not None])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded gradients
        self._norm = norm if self._norm is None else torch.hypot(self._norm.to(norm.device), norm)
        known = self._norm if self.last_norm is None else self._norm.maximum(self.last_norm.to(norm.device))
        clip_grads_with_norm_(params, max_norm, known)

    def _place_of(self, p: Tensor) -> tuple[int, int] | None:
        """The group of a parameter and its position in it, also after groups were added, removed or reordered."""
        groups = self.optimizer.param_groups
        index, i = self._positions.get(id(p), (len(groups), 0))
        if index >= len(groups) or i >= len(groups[index]["params"]) or groups[index]["params"][i] is not p:
            places = ((k, j, q) for k, group in enumerate(groups) for j, q in enumerate(group["params"]))
            self._positions = {id(q): (k, j) for k, j, q in places}
        return self._positions.get(id(p))

    def _name_of(self, p: Tensor) -> str:
        index, i = self._place_of(p) or (0, 0)
        return parameter_name(self.optimizer.param_groups[index], i, f"group {index}")


# torch refuses an annotation that is a string, and builds without torch.distributed have no other.
def average_and_move(state, bucket) -> Future[Tensor]:  # type: ignore[no-untyped-def]
    """The communication hook of DistributedDataParallel: its usual one, and then the step."""
    # A build of torch may lack torch.distributed.
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    handle, process_group = state

    def move(averaged: Future[Tensor]) -> Tensor:
        handle.arrive_averaged(bucket.parameters(), bucket.gradients())
        return averaged.value()

    return allreduce_hook(process_group, bucket).then(move)
