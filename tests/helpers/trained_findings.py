"""Studies of a few steps on real data, trained once for all tests of a process."""

import atexit
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.execution.runner import train_run
from aimopt.lab.protocol.recipes import compare, sensitivity
from aimopt.lab.protocol.study import Contender, Study
from aimopt.lab.report import write
from aimopt.lab.results.costs import Cost, Overhead
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.measure.timing import Ratio
from aimopt.paper.presets import ablation
from odd_task import NAME

OVERHEAD = Overhead(
    reference="AdamW",
    costs=[
        Cost(label="RADAR", step_seconds=0.011, ratio=Ratio(1.1, 1.05, 1.2), peak_bytes=3 << 20, state_bytes=8.0),
        Cost(label="AdamW", step_seconds=0.01, ratio=Ratio(1.0, 1.0, 1.0), peak_bytes=3 << 20, state_bytes=8.0),
    ],
    machine={"processor": "a processor"},
)


def comparison() -> Study:
    """RADAR and two others, on as many seeds as a verdict needs."""
    return compare("odd_task:SMALL", "demo", optimizers=("RADAR", "AdamW", "Lion"), grid=(0.5, 1.0, 5.0))


def odd_comparison(scale: str = "demo") -> Study:
    """Accuracy, of contenders one of which diverges and two are called what they should not be."""
    study = compare("odd_task:ACCURACY", scale, optimizers=("RADAR", "AdamW"), grid=(1.0,), seeds=(0, 1, 2, 3))
    exploding = Contender(label="Explodes", optimizer="odd_task:Explodes")
    named = Contender(label=NAME, optimizer="AdamW", options={"weight_decay": 0.1})
    formula = Contender(label="=1+2", optimizer="Lion")
    return dataclasses.replace(study, contenders=(*study.contenders, exploding, named, formula))


def heat_map() -> Study:
    """Four settings of RADAR."""
    axes = {"ell_ratio": (0.01, 0.1), "gamma": (0.1, 0.2)}
    return sensitivity("odd_task:SMALL", "demo", axes, grid=(0.5, 1.0), seeds=(0, 1))


def one_option() -> Study:
    """RADAR over one of its options."""
    return sensitivity("odd_task:SMALL", "demo", {"delta": (0.9, 1.0)}, grid=(1.0,), seeds=(0, 1))


def texts() -> Study:
    """RADAR over an option whose values have no order."""
    return sensitivity("odd_task:SMALL", "demo", {"bias_correction": ("exact", False)}, grid=(1.0,), seeds=(0, 1))


def unset() -> Study:
    """RADAR over an option that it usually does without."""
    return sensitivity("odd_task:SMALL", "demo", {"ell": (1e-5, 1e-4)}, grid=(1.0,), seeds=(0, 1))


def pairs() -> Study:
    """RADAR over an option that is two numbers, read from a file."""
    study = sensitivity("odd_task:SMALL", "demo", {"betas": ((0.9, 0.99), (0.8, 0.999))}, grid=(1.0,), seeds=(0, 1))
    return Study.from_dict(json.loads(json.dumps(study.to_dict())))


def ablated() -> Study:
    """RADAR without its parts."""
    return ablation("odd_task:SMALL", "demo", grid=(1.0,), seeds=(0, 1))


@cache
def runs_of(make: Callable[[], Study]) -> dict[str, Run]:
    """All runs of a study, by identity, in the order in which they were made."""
    study = make()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        while todo := {c.config.identity: c.config for c in study.cells(made) if c.config.identity not in made}:
            for identity, config in todo.items():
                train_run(config, store)
                known = store.run(config)
                assert known is not None
                made[identity] = known
    torch.set_num_threads(threads)
    return made


@cache
def report_folder() -> Path:
    """A whole report of all findings, but for the files of figures, which take their time."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write(folder, findings(), title=NAME, command="aimopt compare digits && echo '<b>'", refresh=1000)
    return folder


@cache
def findings() -> tuple[StudyAnalysis, StudyAnalysis, StudyAnalysis]:
    """A comparison with costs, an odd one, and a heat map."""
    return (
        analyse_study(comparison(), runs_of(comparison), OVERHEAD),
        analyse_study(odd_comparison(), runs_of(odd_comparison)),
        analyse_study(heat_map(), runs_of(heat_map)),
    )
