"""Carry out runs.

scheduler.py            decides which runs are trained next, until a study is complete
resources.py            the engines by name, and what a run may use
engines/                places runs on processes and machines: local, Ray, Slurm
runner.py               trains one run, from its config or its last checkpoint
distributed.py          several processes that train one run together
log_lines.py            shows the progress of downloads
process_output.py       the last line that a process printed
progress.py             shows the progress of a sweep; console.py is its terminal
cost_forecast.py        predicts time, memory and disk space of a study
step_timing.py          times a few steps within some seconds, without downloads, for a forecast
cost_measurement.py     measures time and memory of a study's contenders
"""
