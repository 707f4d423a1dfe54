"""Results on disk.

run.py           a run as a value: its config, status, history
store.py         the store: one folder per run; everything else of the lab reads and writes runs through it
run_files.py     reads and checks the files of one run
json_files.py    reads and checks JSON files, with checksums
claims.py        one process at a time works on a run
sessions.py      where and with what a run was made
costs.py         the measured costs of a study's contenders
"""
