"""Pack the runs of finished studies: `python benchmarks/pack_results.py STORE docs/results/mini.tar.xz compare`.

The names of the studies follow the file. Only runs that a complete study needs are packed, with the files that results
are read from; checkpoints are not. The order, owners and times of the files are fixed, so that the same runs give the
same archive.
"""

import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.results.store import Store

PACKED = ("manifest.json", "metrics.jsonl", "result.json")


def pack(store: Store, file: Path, names: Sequence[str]) -> None:
    runs = store.runs()
    found = []
    for study in (study for study in store.studies() if study.name in names):
        analysis = analyse_study(study, runs)
        state = "packed" if analysis.progress.complete else "left out: runs are missing"
        print(f"{study.name} of {study.task} against {study.reference}: {state}")
        if analysis.progress.complete:
            found.append(store.study_file(study))
            configs = {cell.config.identity: cell.config for cell in study.cells(runs)}
            found += [store.folder(config) / name for config in configs.values() for name in PACKED]
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path in sorted(set(found)):
            archive.add(path, path.relative_to(store.root).as_posix(), filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


if __name__ == "__main__":
    pack(Store(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:])
