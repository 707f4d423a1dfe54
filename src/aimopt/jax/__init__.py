"""optax transformations from the same parts: the optimizers of this package for JAX.

    transformation = aimopt.jax.radar(1e-3, weight_decay=0.1)        an optax.GradientTransformation
    transformation = aimopt.jax.create("muon", optax.cosine_decay_schedule(0.02, 1000))
    transformation = aimopt.jax.from_parts(1e-3, filter=EMA(0.9), geometry=Sign(), correction=Secant())

Every named optimizer has a function with its name in lower case and its hyperparameters, except `lr`, which is optax's
`learning_rate`. No rule is stated here: the same `Move` that steps tensors runs on arrays of JAX.
"""

import inspect
from collections.abc import Callable
from typing import Any, Self

from aimopt.messages.extras import install_command

try:
    import optax
except ImportError as error:  # of jax or of optax
    raise ImportError(f"aimopt.jax needs jax and optax; install them with: {install_command('jax')}") from error

from aimopt.aim import AIM
from aimopt.jax.transform import Rule
from aimopt.optimizers import available, class_of
from aimopt.step.options import OPTIONS

__all__ = ["Transformation", "create", "from_parts"]  # and a function per named optimizer: see `__getattr__`
_FUNCTIONS = frozenset(map(str.lower, available()))


class Transformation(optax.GradientTransformation):  # type: ignore[misc]
    """An optax.GradientTransformation: the two functions `init` and `update`."""

    rule: Rule

    @classmethod
    def from_rule(cls, rule: Rule) -> Self:
        """The transformation of a rule."""
        transformation = cls(rule.init, rule.update)
        transformation.rule = rule
        return transformation

    def evaluation_params(self, state: Any, params: Any) -> Any:
        """The parameters at which to evaluate the model; they differ from `params` if the iterate is an average."""
        return self.rule.evaluation_params(state, params)


def from_parts(learning_rate: Any, **parts_and_hyperparameters: Any) -> Transformation:
    """The transformation of `aimopt.AIM` with these parts; a learning rate is a number, an array or a schedule."""
    return _factory(AIM)(learning_rate, **parts_and_hyperparameters)


def create(name: str, learning_rate: Any, **hyperparameters: Any) -> Transformation:
    """The transformation of a named optimizer; names are those of `aimopt.create`, in upper or lower case."""
    return _factory(class_of(name))(learning_rate, **hyperparameters)


def _factory(optimizer: type[AIM]) -> Callable[..., Transformation]:
    """The function that makes the transformations of this class."""
    of_class = inspect.signature(optimizer).parameters
    rate = of_class["lr"].replace(name="learning_rate", annotation=optax.ScalarOrSchedule)
    others = [p for name, p in of_class.items() if name not in OPTIONS or OPTIONS[name].in_arithmetic]
    parameters = [rate if p.name == "lr" else p for p in others if p.name != "params"]
    signature = inspect.Signature(parameters, return_annotation=Transformation)

    def factory(*args: Any, **kwargs: Any) -> Transformation:
        if "lr" in kwargs:
            raise TypeError(
                f"{factory.__name__}() got an unexpected keyword argument 'lr'; optax calls it learning_rate"
            )
        arguments = {"learning_rate": rate.default, **signature.bind_partial(*args).arguments, **kwargs}
        return Transformation.from_rule(Rule.create(optimizer, **arguments))

    factory.__name__ = factory.__qualname__ = optimizer.__name__.lower()
    factory.__doc__ = f"The transformation of `aimopt.{optimizer.__name__}`: {inspect.getdoc(optimizer)}"
    factory.__signature__ = signature  # type: ignore[attr-defined]
    return factory


def __getattr__(name: str) -> Callable[..., Transformation]:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _factory(class_of(name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS})
