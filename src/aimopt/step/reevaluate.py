"""Steps that evaluate the closure again: the generic driver of `Correction.solve`.

    attempts = reevaluate(buckets, evaluate)      every parameter is at its final point
    attempts = ... raises                         every parameter and its state are as before the step

A correction owns its algorithm. It is a generator that places `Attempt`s and yields when it needs gradients there. The
driver runs the generators of all groups in rounds, with one evaluation of the closure per round. For example
`FixedPoint(iterations=3)` in one group and `Direct` in another: two further evaluations, one move of the second group.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from aimopt.parts.component import Attempt, Correction, DisplacementInputs
from aimopt.step.move import Bucket, gradient
from aimopt.step.storage import why_too_short


class NonFinite(Exception):
    """A later evaluation of the closure gave a gradient that `skip_nonfinite` skips."""


class BucketAttempt:
    """The move of one bucket: it can be repeated with other gradients, and undone."""

    displacement: Tensor

    def __init__(self, bucket: Bucket):
        self.bucket = bucket
        self._saved_params = [p.clone() for p in bucket.params]
        self._saved_states = [{name: value.clone() for name, value in state.items()} for state in bucket.states]
        torch._foreach_sub_([state["step"] for state in self._saved_states], 1)  # the bucket has counted this step

    def begin(self) -> None:
        """Let filter and geometry observe the first gradient."""
        self.move = self.bucket.move()
        self._theta = self.move.p.clone()
        self._inputs = self.move.displacement_inputs()

    @property
    def correction(self) -> Correction:
        """The correction of these parameters' group."""
        return self.bucket.parts.correction

    @property
    def inputs(self) -> DisplacementInputs:
        """The inputs of a displacement, with the first gradient."""
        return self._inputs

    @property
    def decays_first(self) -> bool:
        """Whether θ is decayed before the displacement."""
        decay = self.bucket.parts.decay
        return decay.terms(self._theta, self._theta, self.move.rate, self.move.state)[1] is not None

    def place(self, displacement: Tensor) -> None:
        """Move the parameters to the point that this displacement leads to from θ."""
        self.displacement = displacement
        self.move.p.copy_(self._theta)
        self.move.move_by(displacement)
        self.bucket.store_params(self.move)

    def gradient(self) -> Tensor:
        """The gradient of the last evaluation, coupled weight decay included."""
        return gradient(self.move.p, self.bucket.present_gradient(), self.move.group, self.bucket.parts)

    def finish(self) -> None:
        """Accept the point and store the state."""
        self.move.finish()
        self.bucket.store_params(self.move)
        self.bucket.store_state(self.move)

    def undo(self) -> None:
        """Restore parameters and state from before this step."""
        pairs = list(zip(self.bucket.params, self._saved_params, strict=True))
        for state, saved in zip(self.bucket.states, self._saved_states, strict=True):
            pairs += [(state[name], value) for name, value in saved.items()]
        for x, saved_value in pairs:
            if x.shape == saved_value.shape and not why_too_short("", x):  # the closure may have replaced the tensor
                x.copy_(saved_value)


def reevaluate(buckets: Iterator[tuple[int, Bucket]], evaluate: Callable[[], None]) -> list[tuple[int, BucketAttempt]]:
    """Step buckets, each with its group's index, by their corrections' `solve`; undo everything if that raises."""
    attempts: list[tuple[int, BucketAttempt]] = []
    try:
        for index, bucket in buckets:
            attempts.append((index, BucketAttempt(bucket)))
        for _, attempt in attempts:
            attempt.begin()
        _run_rounds(_solvers(attempts), evaluate)
        for _, attempt in attempts:
            if not hasattr(attempt, "displacement"):
                raise ValueError(f"{type(attempt.correction).__name__}.solve must place every attempt that it is given")
            attempt.finish()
    except BaseException:
        for _, attempt in attempts:
            attempt.undo()
        raise
    return attempts


def _solvers(attempts: Sequence[tuple[int, BucketAttempt]]) -> list[Iterator[None]]:
    """One running `solve` per group, or one for all groups if the correction is joint."""
    together: dict[int, list[Attempt]] = {}
    for index, attempt in attempts:
        together.setdefault(-1 if attempt.correction.joint else index, []).append(attempt)
    solvers = [members[0].correction.solve(members) for members in together.values()]
    for members, solver in zip(together.values(), solvers, strict=True):
        if not isinstance(solver, Iterator):
            name = type(members[0].correction).__name__
            raise ValueError(f"{name}.solve must be a generator, which yields where it needs gradients; got {solver!r}")
    return solvers


def _run_rounds(solvers: Sequence[Iterator[None]], evaluate: Callable[[], None]) -> None:
    """Run every solver up to its next request for gradients, evaluate once for all of them, and go on."""
    finished = object()
    while solvers := [solver for solver in solvers if next(solver, finished) is not finished]:
        evaluate()
