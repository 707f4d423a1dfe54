"""Benchmarks: times that can be compared, because they were taken in turn in one process.

shapes.py    the parameters of real models
timing.py    contenders in turn, and the median of their paired ratios
step.py      the optimizer step against torch's and against published peers: `aimopt bench step`
train.py     a small GPT's whole training step: `aimopt bench train`
"""
