"""Theory you can run: what an optimizer does to a gradient, where it is stable, and what can be proved about it.

    theory.response(optimizer)                                       poles, gains, noise and delay of the direction
    theory.compare_on_quadratics({"SGDM": …, "RADAR": …}, 1, 100)    largest stable step and best convergence rate
    theory.certificate(L=1, sigma2=0.1, lr=1e-3, …)                  Theorem 2 of the paper
    theory.estimate(model, loss, data, optimizer)                    the constants of that theorem, measured on a model

Print any of them. They read the parts of the optimizer. First steps, paths and preconditioners come from the step
itself; transfer functions, iteration matrices and the certificate are closed forms, which the tests compare with real
steps. `aimopt.theory.plots` draws them. The names here need `pip install 'aimopt[theory]'`, but importing the package
does not, so that the command line can list its commands without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aimopt.messages.extras import install_command

if TYPE_CHECKING:
    from aimopt.theory.estimates import CurvatureEstimate, estimate
    from aimopt.theory.frequency import FirstSteps, Grid, Response, response
    from aimopt.theory.lyapunov import Certificate, certificate, certificate_of, largest_stable_lr
    from aimopt.theory.quadratics import Quadratic, QuadraticComparison, Rate, compare_on_quadratics, quadratic

__all__ = [
    "Certificate",
    "CurvatureEstimate",
    "FirstSteps",
    "Grid",
    "Quadratic",
    "QuadraticComparison",
    "Rate",
    "Response",
    "certificate",
    "certificate_of",
    "compare_on_quadratics",
    "estimate",
    "largest_stable_lr",
    "quadratic",
    "response",
]

if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in ("frequency", "quadratics", "lyapunov", "estimates"):
            try:
                value = getattr(import_module(f"{__name__}.{module}"), name, None)
            except ModuleNotFoundError as error:
                raise ImportError(f"aimopt.theory needs {error.name}: {install_command('theory')}") from error
            if value is not None:
                return value
        raise AssertionError(f"{name} is in __all__ but in no module")
