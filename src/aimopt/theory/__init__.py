"""Theory you can run: what an optimizer does to a gradient, where it is stable, and what can be proved of it.

    theory.response(optimizer)                           poles, gains, noise and delay of what moves the parameter
    theory.compare({"SGDM": …, "RADAR": …}, 1, 100)      the largest stable step and the best rate on quadratics
    theory.certificate(L=1, sigma2=0.1, lr=1e-3, …)      Theorem 2 of the paper
    theory.estimate(model, loss, data, optimizer)        what that theorem asks for, measured on a model

Print any of them. Everything is read from the components the optimizer runs, and held to real runs by the tests;
`aimopt.theory.pictures` draws it. Needs `pip install 'aimopt[theory]'`, but not before one of these names is used: the
command line lists its commands without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aimopt.theory.estimates import Estimate, estimate
    from aimopt.theory.frequency import FirstSteps, Grid, Response, response
    from aimopt.theory.lyapunov import Certificate, certificate, certificate_of, largest_stable_lr
    from aimopt.theory.quadratics import Comparison, Quadratic, Rate, compare, quadratic

__all__ = [
    "Certificate",
    "Comparison",
    "Estimate",
    "FirstSteps",
    "Grid",
    "Quadratic",
    "Rate",
    "Response",
    "certificate",
    "certificate_of",
    "compare",
    "estimate",
    "largest_stable_lr",
    "quadratic",
    "response",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("frequency", "quadratics", "lyapunov", "estimates"):
        try:
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
        except ModuleNotFoundError as error:
            raise ImportError(f"aimopt.theory needs {error.name}: pip install 'aimopt[theory]'") from error
        if found is not None:
            return found
    raise AssertionError(f"{name} is in __all__ and in no module")
