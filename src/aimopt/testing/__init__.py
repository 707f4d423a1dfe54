"""Checks for a part of your own: everything that the tests of this package run on its parts.

    from aimopt.testing import check
    report = check(MyFilter(0.9))             prints a table; `report.ok`, `report.failures`
    check(MyGeometry(), compiled=True)        also under torch.compile, which takes longer

`aimopt.testing.driving` drives optimizers over fixed streams of gradients, `aimopt.testing.paths` compares the ways to
carry out a step, `aimopt.testing.declarations` measures what a part says about itself.
"""

from aimopt.testing.report import Report, Row, check

__all__ = ["Report", "Row", "check"]
