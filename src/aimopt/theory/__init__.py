"""Theory you can run: what an optimizer does to a gradient, where it is stable, and what can be proved of it.

    theory.response(optimizer)                           poles, gains, noise and delay of what moves the parameter
    theory.compare({"SGDM": …, "RADAR": …}, 1, 100)      the largest stable step and the best rate on quadratics
    theory.certificate(L=1, sigma2=0.1, lr=1e-3, …)      Theorem 2 of the paper
    theory.estimate(model, loss, data, optimizer)        what that theorem asks for, measured on a model

Print any of them. Everything is read from the components the optimizer runs, and held to real runs by the tests;
`aimopt.theory.pictures` draws it. Needs `pip install 'aimopt[theory]'`.
"""

try:
    import scipy  # noqa: F401, and with it numpy
except ImportError as error:  # pragma: no cover
    raise ImportError("aimopt.theory needs numpy and scipy: pip install 'aimopt[theory]'") from error

from aimopt.theory.certificate import Certificate, certificate, certificate_of, largest_stable_lr
from aimopt.theory.estimate import Estimate, estimate
from aimopt.theory.quadratic import Comparison, Quadratic, Rate, compare, quadratic
from aimopt.theory.response import FirstSteps, Grid, Response, response

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
