"""The studies behind the pages of results, and the commands that make their archives.

    python benchmarks/evidence.py train STORE               take over the archived runs, then train all that is missing
    python benchmarks/evidence.py train STORE --only TEXT   only the studies that have this in their titles
    python benchmarks/evidence.py status STORE              how far every study is, by its title
    python benchmarks/evidence.py pack STORE                write docs/results/*.tar.xz

`ARCHIVES` states every study, in the order in which they are trained. Training can be interrupted at any time (Ctrl-C
or `kill -TERM`); the same command continues. The archive of a page has the studies that are complete; the runs of all
others are in an archive of their own, so that another machine can go on with them. Checkpoints are not packed. The
order, owners and times of the packed files are fixed, so that the same runs give the same archive.
"""

import argparse
import json
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from aimopt.lab import Exploration, compare, explore, lengths, run
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.protocol.study import COMPARISON, Study
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.paper.presets import table1

RESULTS = Path(__file__).parent.parent / "docs" / "results"
UNFINISHED = "unfinished"  # the archive of runs that no page uses yet
RUN_FILES = ("manifest.json", "metrics.jsonl", "result.json")

CONTROL = "AdamW(tune='beta1')"  # AdamW with as little momentum as it likes
CORE = ("RADAR", "AdamW", CONTROL, "RADAR(tune='beta1')")
LONG_AVERAGE = "QHAdam(nus=(0.7, 1.0), betas=(0.995, 0.999))"
# What the paper compares RADAR with (its Adam is AdamW here), and more: matrices, and QHAdam with the same β1.
RIVALS = (
    "RADAR",
    "AdamW",
    "NAdam",
    "Muon",
    "hybrid",
    "Lion",
    "Adan",
    "AdaBelief",
    "RAD",
    "QHAdam(nus=(0.7, 1.0), betas=(0.9, 0.999))",
)
CONFIRMATION = "confirm"  # the name of a study that confirms an exploration
BEST_EXPLORED = ("CautiousAdamW", "SOAP", "Muon(rest='RADAR')")  # the best two of each task
TABLE1_SETTINGS = {"steps": 150, "warmup_steps": 12, "evaluate_every": 10}
EXPLORED_RATES = (0.5, 1.0, 2.0, 4.0)
# Does a lead survive under other conditions? AdamW's second β1 is the one that its search chose under the usual ones.
IN_CONDITIONS = ("RADAR", "AdamW", "AdamW(betas=(0.829, 0.999))")
IN_CONDITIONS_NAME = "conditions"
CONDITIONS_RATES = (0.25, 0.5, 1.0, 2.0)
# What is weight decay worth? Without it, and with ten times the usual one, which is 0.05 on images and 0.1 on text.
WEIGHT_DECAY_NAME = "weight decay"
OTHER_WEIGHT_DECAYS = {"cifar10-vit": (0.0, 0.5), "wikitext103-gpt2": (0.0, 1.0)}
# Is the authors' bias correction, which makes RADAR's first steps longer, the better default? With the usual warm-up,
# which fine-tuning does not have, and without one.
EXACT = "RADAR(bias_correction='exact')"
BIAS_CORRECTION_NAME, NO_WARMUP_NAME = "bias correction", "no warm-up"
BIAS_CORRECTION_TASKS = ("wikitext2-finetune", "wikitext103-gpt2", "cifar10-vit")
# AdamW at these multiples of its steps says how many steps a gain is worth.
OTHER_LENGTHS = (0.5, 2.0)
WITH_OTHER_LENGTHS = ("cifar10-vit", "cifar100-resnet50", "wikitext103-gpt2", "fineweb-qwen", "wikitext2-finetune")


def _of_length(steps: int, **settings: Any) -> dict[str, Any]:
    return {"steps": steps, "warmup_steps": steps * 8 // 100, "evaluate_every": steps // 10, **settings}


CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "300 steps": _of_length(300),
    "500 steps (usual)": {},
    "1,000 steps": _of_length(1000),
    "3,000 steps": _of_length(3000),
    # Initial weights of 0.02·√(768/96); the usual width has 0.02·√(768/48).
    "twice the width": {"width": 96, "heads": 6, "initial_std": 0.057},
    "batches of 32 blocks, 1,000 steps": _of_length(1000, batch_size=32),
    "batches of 8 blocks, 4,000 steps": _of_length(4000, batch_size=8),
    "batches of 128 blocks, 250 steps": _of_length(250, batch_size=128),
}

Evidence = Study | Exploration
ReadRuns = Callable[[], Mapping[str, Run]]


def against_both(task: str, seeds: int, *others: str, control_seeds: int | None = None) -> list[Study]:
    """RADAR and others against AdamW, and against AdamW with a tuned β1; the numbers of seeds are the largest."""
    optimizers = [*CORE, *others]
    return [
        compare(task, optimizers=optimizers, seeds=tuple(range(seeds))),
        compare(task, optimizers=optimizers, seeds=tuple(range(control_seeds or seeds)), reference=CONTROL),
    ]


def against_radar(task: str) -> Study:
    """Each rival of RADAR against it, with ten seeds at most."""
    return compare(task, optimizers=RIVALS, reference="RADAR", seeds=tuple(range(10)))


def mini() -> list[Evidence]:
    """docs/reproduction.md."""
    return [
        *against_both("cifar10-vit", 40, LONG_AVERAGE),
        *against_both("wikitext103-gpt2", 40, LONG_AVERAGE, control_seeds=20),
        *against_both("wikitext2-finetune", 40, "NAdam", control_seeds=20),
        *against_both("fineweb-qwen", 20),
        *against_both("cifar100-resnet50", 20),
        *against_both("pendulum-sac", 10),
        *against_both("halfcheetah-sac", 10),
        *against_both("walker2d-sac", 10),
        *map(against_radar, ("wikitext103-gpt2", "cifar10-vit", "wikitext2-finetune")),
        *map(against_radar, ("cifar100-resnet50", "fineweb-qwen", "halfcheetah-sac", "walker2d-sac")),
    ]


def in_condition(settings: Mapping[str, Any]) -> list[Study]:
    """RADAR under one condition against AdamW, and against AdamW with less momentum."""
    return [
        compare(
            "wikitext103-gpt2",
            optimizers=IN_CONDITIONS,
            name=IN_CONDITIONS_NAME,
            reference=reference,
            grid=CONDITIONS_RATES,
            seeds=tuple(range(5)),
            settings=settings,
            untuned=False,
        )
        for reference in IN_CONDITIONS[1:]
    ]


def with_weight_decay(task: str) -> Study:
    """RADAR and AdamW with the usual and with other weight decays, against RADAR with the usual one."""
    optimizers = ("RADAR", "AdamW")
    decayed = [f"{name}(weight_decay={decay})" for name in optimizers for decay in OTHER_WEIGHT_DECAYS[task]]
    return compare(
        task,
        optimizers=(*optimizers, *decayed),
        name=WEIGHT_DECAY_NAME,
        reference="RADAR",
        seeds=tuple(range(10)),
        untuned=False,
    )


def with_exact_correction(task: str, *, warmup: bool) -> Study:
    """RADAR with the exact bias correction, and AdamW, against RADAR."""
    return compare(
        task,
        optimizers=("RADAR", EXACT, "AdamW"),
        name=BIAS_CORRECTION_NAME if warmup else NO_WARMUP_NAME,
        reference="RADAR",
        seeds=tuple(range(20)),
        settings={} if warmup else {"warmup_steps": 0},
        untuned=False,
    )


def conditions() -> list[Evidence]:
    """docs/conditions.md."""
    return [
        *(study for settings in CONDITIONS.values() for study in in_condition(settings)),
        *map(with_weight_decay, OTHER_WEIGHT_DECAYS),
        *(with_exact_correction(task, warmup=True) for task in BIAS_CORRECTION_TASKS),
        *(with_exact_correction(task, warmup=False) for task in BIAS_CORRECTION_TASKS[1:]),
    ]


def explored() -> list[Exploration]:
    """Successive halving over optimizers."""
    return [Exploration.of(task, rates=EXPLORED_RATES) for task in ("wikitext103-gpt2", "cifar10-vit")]


def cautious_radar(gamma: float = 0.1, beta2: float = 0.999) -> str:
    """What the exploration suggests and did not try: the mask of CautiousAdamW around RADAR's step."""
    parts = {
        "filter": f"GradientDifference(0.9, {gamma:g})",
        "geometry": f"Relativistic({beta2:g})",
        "correction": "Cautious(FixedPoint(ell_ratio=0.01))",
    }
    return f"AIM({', '.join(f'{axis}={part!r}' for axis, part in parts.items())})"


def confirmed() -> list[Study]:
    """The best of the exploration against RADAR, on tasks and seeds that it did not touch."""
    masked = {"fineweb-qwen": cautious_radar(gamma=0.01, beta2=0.95), "cifar100-resnet50": cautious_radar()}
    return [
        compare(
            task,
            optimizers=("RADAR", "AdamW", CONTROL, *BEST_EXPLORED, radar),
            name=CONFIRMATION,
            reference="RADAR",
            seeds=tuple(range(10)),
            untuned=False,
        )
        for task, radar in masked.items()
    ]


def explored_and_confirmed() -> list[Evidence]:
    """docs/exploration.md."""
    return [*explored(), *confirmed()]


def paper_table() -> list[Evidence]:
    """docs/table1.md."""
    tasks, seeds = ("wikitext103-gpt2", "cifar10-vit"), tuple(range(10))
    return [table1(task, settings=TABLE1_SETTINGS, seeds=seeds, looks=(10,)) for task in tasks]


ARCHIVES: Mapping[str, Callable[[], Sequence[Evidence]]] = {
    "table1": paper_table,
    "mini": mini,
    "conditions": conditions,
    "explored": explored_and_confirmed,
}


def at_other_lengths(evidence: Evidence, read_runs: ReadRuns) -> list[Study]:
    """AdamW of a comparison with it at other lengths; nothing before the search has chosen its rate."""
    if isinstance(evidence, Exploration) or evidence.task not in WITH_OTHER_LENGTHS:
        return []
    if (evidence.name, evidence.reference) != (COMPARISON, "AdamW"):
        return []
    runs = read_runs()
    chosen = evidence.choice(evidence.contender(evidence.reference), runs)
    return lengths(evidence, runs, OTHER_LENGTHS) if chosen else []


def train(store: Store, part_of_title: str = "") -> None:
    """Take over the runs of the archives, and train what is missing in the studies with this in their titles."""
    for name in (*ARCHIVES, UNFINISHED):
        if (archive := RESULTS / f"{name}.tar.xz").exists():
            _unpack(archive, store.root)
    for name, evidence in all_evidence(store.runs):
        if part_of_title not in _title(evidence):
            continue
        complete = _is_complete(evidence, store.runs())
        print(f"{name}: {_title(evidence)}{': complete' if complete else ''}", flush=True)
        if complete:  # not even its data are needed
            if isinstance(evidence, Study):
                store.save_study(evidence)  # tables and reports read the studies of the store
            continue
        if isinstance(evidence, Exploration):
            explore(evidence, store, progress=True)
        else:
            run(evidence, store, costs=False, progress=True)


def status(store: Store) -> None:
    """Print how far every study is."""
    runs = store.runs()
    for name, evidence in all_evidence(lambda: runs):
        missing = sum(not _settled(cell.config.identity, runs) for cell in evidence.cells(runs))
        missing += evidence.count_unknown_runs(runs)
        state = f"{missing} runs or more are missing" if missing else "complete"
        print(f"{name}: {_title(evidence)}: {state}")


def pack(store: Store) -> None:
    """Write the archives: one per page, and one with the runs of studies that are not complete."""
    runs = store.runs()
    stated = [*all_evidence(lambda: runs)]
    packed: set[str] = set()
    for name in ARCHIVES:
        complete = [evidence for archive, evidence in stated if archive == name and _is_complete(evidence, runs)]
        files = dict(_definition(evidence, store) for evidence in complete)
        for evidence in complete:
            files |= _run_files(evidence, store, runs)
        if complete:
            _write_archive(RESULTS / f"{name}.tar.xz", files)
            print(f"{name}: packed {'; '.join(map(_title, complete))}")
        packed |= files.keys()
    begun: dict[str, bytes] = {}
    for _, evidence in stated:
        begun |= _run_files(evidence, store, runs)
    rest = {path: content for path, content in begun.items() if path not in packed}
    (RESULTS / f"{UNFINISHED}.tar.xz").unlink(missing_ok=True)
    if rest:
        _write_archive(RESULTS / f"{UNFINISHED}.tar.xz", rest)
        print(f"{UNFINISHED}: packed {len(rest) // len(RUN_FILES)} runs of studies that are not complete")


def _run_files(evidence: Evidence, store: Store, runs: Mapping[str, Run]) -> dict[str, bytes]:
    """The files of the runs so far, by their paths in the store."""
    configs = {cell.config.identity: cell.config for cell in evidence.cells(runs)}
    settled = [config for identity, config in configs.items() if _settled(identity, runs)]
    paths = [store.folder(config) / file for config in settled for file in RUN_FILES]
    return {path.relative_to(store.root).as_posix(): path.read_bytes() for path in paths}


def all_evidence(read_runs: ReadRuns) -> Iterator[tuple[str, Evidence]]:
    """Every study with the name of its archive; those at other lengths follow the one that chooses their rate."""
    for name, studies in ARCHIVES.items():
        for evidence in studies():
            yield name, evidence
            for other in at_other_lengths(evidence, read_runs):
                yield name, other


def _title(evidence: Evidence) -> str:
    study = evidence.study if isinstance(evidence, Exploration) else evidence
    settings = "".join(f", {name} {value}" for name, value in study.settings.items())
    return f"{study.name} of {study.task}{settings}, against {study.reference}"


def _settled(identity: str, runs: Mapping[str, Run]) -> bool:
    return identity in runs and runs[identity].settled


def _is_complete(evidence: Evidence, runs: Mapping[str, Run]) -> bool:
    if isinstance(evidence, Exploration):
        rungs = evidence.plan(runs)
        return len(rungs) == len(evidence.rungs) and rungs[-1].is_complete
    return analyse_study(evidence, runs).progress.complete


def _definition(evidence: Evidence, store: Store) -> tuple[str, bytes]:
    """The file that says what was asked. An exploration has no verdict, so a report must not find it as a study."""
    if isinstance(evidence, Exploration):
        content = {"rungs": evidence.rungs, **evidence.study.to_record()}
        return f"explorations/{evidence.study.task}.json", json.dumps(content, indent=1).encode()
    path = store.study_file(store.save_study(evidence))
    return path.relative_to(store.root).as_posix(), path.read_bytes()


def _unpack(archive: Path, folder: Path) -> None:
    """Add the files that the folder does not have; the folder may have more."""
    with tarfile.open(archive) as files:
        missing = [member for member in files if member.isfile() and not (folder / member.name).exists()]
        files.extractall(folder, missing, filter="data")


def _write_archive(file: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, BytesIO(content))


COMMANDS = {"train": train, "status": status, "pack": pack}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("store", type=Path, help="folder of the runs")
    parser.add_argument("--only", metavar="TEXT", default="", help="train the studies with this in their titles")
    given = parser.parse_args()
    if given.only and given.command != "train":
        parser.error("--only is an option of train")
    options = (given.only,) if given.only else ()
    try:
        COMMANDS[given.command](Store(given.store), *options)
    except KeyboardInterrupt:
        sys.exit("stopped; nothing is lost, and the same command continues")
