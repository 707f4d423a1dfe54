"""Whether an installed wheel works: `python .github/check_wheel.py`, outside of the clone's `src`.

It must be the installed package, and its kernel must take the fused path and agree with the plain one.
"""

from pathlib import Path

import torch

import aimopt
from aimopt import kernels

for path, state in kernels.status().items():
    print(f"{path}: {state}")
assert "site-packages" in Path(aimopt.__file__).parts, aimopt.__file__
for optimizer in (aimopt.RADAR, aimopt.AdamW, aimopt.Lion):
    results = []
    for fused in (True, False):  # fused=True raises if there is no kernel
        parameter = torch.linspace(-1, 1, 10_001, dtype=torch.float64, requires_grad=True)
        stepped = optimizer([parameter], lr=1e-2, weight_decay=0.1, fused=fused)
        for _ in range(5):
            stepped.zero_grad()
            (parameter - 0.5).pow(4).sum().backward()
            stepped.step()
        results.append(parameter.detach())
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    print(f"{optimizer.__name__}: fused and plain agree")
