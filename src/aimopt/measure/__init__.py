"""Measurements of time and memory, for `aimopt bench` and for the lab.

timing.py            functions timed in turn, and the medians of their paired ratios; bytes of state per parameter
memory.py            peak memory
processes.py         processes that Ctrl-C does not reach
machine.py           the machine and the versions that a measurement was made with
model_shapes.py      the parameter shapes of real models
step_benchmark.py    the optimizer step against torch's and published optimizers: `aimopt bench step`
train_benchmark.py   the whole training step of a small GPT: `aimopt bench train`
"""
