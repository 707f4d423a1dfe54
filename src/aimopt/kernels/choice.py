"""The kernels of an optimizer's parameter groups: checked memory in, a kernel or a reason out."""

from torch import Tensor

from aimopt.kernels import FusedGroup
from aimopt.kernels.memory import CheckedGroup, GroupMemory
from aimopt.messages.reason import Reason
from aimopt.step.gather import Gathered, invalid_count, refusal
from aimopt.step.usable import why_intercepted

UNREACHABLE = Reason("its memory has gaps, or its state or gradient has another dtype, layout or device")


class GroupKernels:
    """For each parameter group its kernel and its checked memory, kept from step to step."""

    def __init__(self, optimizer: str) -> None:
        self._optimizer = optimizer  # the name of its class, for messages
        self.fused_groups: dict[int, FusedGroup] = {}
        self.memories: dict[int, GroupMemory] = {}

    def check(self, gathered: Gathered) -> CheckedGroup:
        """Check the memory of a group's tensors; raises an error for tensors that no step can work on."""
        return self.memories.setdefault(gathered.group_index, GroupMemory()).check(gathered, self._optimizer)

    def locate(self, checked: CheckedGroup, *, scaled: bool) -> FusedGroup | None:
        """The kernel of a group, after it has located the parameters that it can step; None if the group has none."""
        gathered = checked.gathered
        fused, foreach = gathered.group["fused"], gathered.group["foreach"]
        if (
            gathered.group["differentiable"]
            or not gathered.params
            or not (fused or (fused is None and foreach is None))
        ):
            return None
        reason, first = why_intercepted(), 0
        if reason is None:
            kernel = self.fused_groups.setdefault(gathered.group_index, FusedGroup())
            kernel.locate(checked, scaled=scaled)
            if not (fused and kernel.unreachable):
                return kernel
            reason, first = kernel.reason or UNREACHABLE, kernel.unreachable[0]
        if not fused:
            return None
        name = gathered.name_of(first)
        raise RuntimeError(
            f"{self._optimizer}.step: fused=True, but no kernel reaches {name} ({reason}); leave fused=None"
        )

    def run(
        self, gathered: Gathered, kernel: FusedGroup, grad_scale: Tensor | None, found_inf: Tensor | None
    ) -> Gathered | None:
        """Step the parameters that the kernel has located, and return the others, if there are any."""
        refused = kernel.run(gathered.group["lr"], grad_scale, found_inf)
        if refused is not None:
            reason = invalid_count(gathered.states()[refused]["step"])
            raise refusal(gathered, refused, self._optimizer, reason)
        return gathered.select(kernel.unreachable) if kernel.unreachable else None

    def release_tensors(self) -> None:
        """Drop all references to located tensors."""
        for kernel in self.fused_groups.values():
            kernel.release_tensors()
