"""The runs of an archive, read and judged without aimopt: numpy, scipy and the json files are all it takes.

    archive = Archive.read([Path("docs/results/mini.tar.xz")])
    study = archive.study("cifar10-vit", name="compare")
    archive.chosen("RADAR", study).rate                   0.005, by the mean of the last three validation losses
    archive.finals("RADAR", study)                        {0: 1.6912, 1: 1.6622, …}: seed -> test loss
    verdicts({"RADAR": …, "AdamW": …}, "AdamW", "lower")  {"RADAR": "better"}

Everything is stated a second time here on purpose: `recompute.py` compares it with what the lab printed.
"""

import ast
import hashlib
import json
import math
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.05
ENOUGH_SEEDS = 5
SCORED = 3  # the score of a search run is the mean of this many last evaluations
ALL_FLIPS = 1 << 16
WORST = {"lower": math.inf, "higher": -math.inf}
# Of archives whose studies have no facts: the measure of the search, the reported one, and which direction is better.
MEASURES = {
    "cifar10-vit": ("valid_loss", "test_loss", "lower"),
    "cifar100-resnet50": ("valid_loss", "test_loss", "lower"),
    "wikitext103-gpt2": ("valid_loss", "test_perplexity", "lower"),
    "fineweb-qwen": ("valid_loss", "test_perplexity", "lower"),
    "wikitext2-finetune": ("valid_perplexity", "test_perplexity", "lower"),
    "halfcheetah-sac": ("valid_return", "test_return", "higher"),
    "walker2d-sac": ("valid_return", "test_return", "higher"),
}

Study = Mapping[str, Any]  # the json file of a study


class Choice(NamedTuple):
    """The learning rate that the search chose."""

    rate: float
    at_edge: bool


@dataclass(frozen=True)
class ArchivedRun:
    """One run: its config, how it ended, and its records."""

    config: Mapping[str, Any]
    status: str
    seconds: float
    history: Sequence[Mapping[str, float]]

    def mean_of_last(self, key: str, better: str, count: int) -> float:
        """The mean of the last values of a measure; the worst value if the run diverged."""
        values = [record[key] for record in self.history if key in record][-count:]
        ended_well = self.status == "finished" and values and all(map(math.isfinite, values))
        return math.fsum(values) / len(values) if ended_well else WORST[better]


@dataclass(frozen=True)
class Archive:
    """The studies and runs of one or more archives."""

    studies: Sequence[Study]
    runs: Sequence[ArchivedRun]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "Archive":
        """Read archives; a file that is not the one its run was finished with is refused."""
        studies, runs = [], []
        for path in paths:
            with tarfile.open(path) as files:
                contents = {PurePosixPath(m.name): _bytes(files, m) for m in files.getmembers() if m.isfile()}
            studies += [json.loads(text) for name, text in contents.items() if _is_study(name)]
            runs += [_run(name.parent, contents) for name in contents if name.name == "result.json"]
        return cls(studies, runs)

    def study(self, task: str, **fields: Any) -> Study:
        """The one study of a task with these fields."""
        found = [s for s in self.studies if s["task"] == task and all(s.get(k) == v for k, v in fields.items())]
        if len(found) != 1:
            raise LookupError(f"the archive has {len(found)} studies of {task} with {fields}, not one")
        return found[0]

    def measures(self, study: Study) -> tuple[str, str, str]:
        """The key of the search's measure, the key of the reported one, and which direction is better."""
        if "facts" not in study:
            return MEASURES[study["task"]]
        score, measure = study["facts"]["score"], study["facts"]["measure"]
        return score["key"], measure["key"], measure["better"]

    def finals(self, label: str, study: Study, rate: float | None = None) -> dict[int, float]:
        """Per seed, the last value of the reported measure at the chosen rate, or at a given one."""
        _, key, better = self.measures(study)
        rate = self.chosen(label, study).rate if rate is None else rate
        runs = {run.config["seed"]: run for run in self._runs_of(label, study) if _near(run.config["lr"], rate)}
        return {seed: runs[seed].mean_of_last(key, better, 1) for seed in study["seeds"] if seed in runs}

    def chosen(self, label: str, study: Study) -> Choice:
        """The best rate of the search; of equal ones, the lowest. Without a search, the grid's one rate."""
        label = study.get("rate_of") or label
        if len(study["grid"]) == 1:
            return Choice(self.usual_rate(label, study) * study["grid"][0], at_edge=False)
        key, _, better = self.measures(study)
        sign = 1 if better == "lower" else -1
        searched = sorted(self._searched(label, study), key=lambda run: run.config["lr"])
        scores = [sign * run.mean_of_last(key, better, SCORED) for run in searched]
        best = int(np.argmin(scores))
        return Choice(searched[best].config["lr"], at_edge=best in (0, len(scores) - 1))

    def count_runs(self, label: str, study: Study) -> int:
        """The number of runs of a contender: its search, and the final runs at the chosen and at the usual rate."""
        searched = self._searched(label, study) if len(study["grid"]) > 1 else []
        rates = (self.chosen(label, study).rate, self.usual_rate(label, study))
        final_runs = [run for run in self._runs_of(label, study) if run.config["seed"] in study["seeds"]]
        return len(searched) + sum(any(_near(run.config["lr"], rate) for rate in rates) for run in final_runs)

    def usual_rate(self, label: str, study: Study) -> float:
        """The rate at the factor 1 of the grid. A study without facts has it from the rates that were tried."""
        if "facts" in study:
            return float(study["facts"]["contenders"][label]["usual_rate"])
        in_setting = [s for s in self.studies if _same_setting(s, study) and len(s["grid"]) > 1]
        with_search = [s for s in in_setting if label in [contender["label"] for contender in s["contenders"]]]
        if with_search:
            rates = sorted(run.config["lr"] for run in self._searched(label, with_search[0]))
            return float(np.median(np.divide(rates, sorted(with_search[0]["grid"]))))
        (rate,) = {run.config["lr"] for run in self._runs_of(label, study)}
        return float(rate)

    def _searched(self, label: str, study: Study) -> list[ArchivedRun]:
        found = [run for run in self._all_of(label, study) if run.config["seed"] == study["tuning_seed"]]
        if len(found) != len(study["grid"]):
            raise LookupError(f"{label} on {study['task']} has {len(found)} search runs for {len(study['grid'])} rates")
        return found

    def _runs_of(self, label: str, study: Study) -> list[ArchivedRun]:
        """The runs of a contender over the whole schedule, at any rate."""
        return [run for run in self._all_of(label, study) if run.config["steps"] == run.config["settings"]["steps"]]

    def _all_of(self, label: str, study: Study) -> list[ArchivedRun]:
        contender = _contender(label, study)
        in_setting = [run for run in self.runs if _same_setting(run.config, study)]
        of_optimizer = [run for run in in_setting if run.config["optimizer"] == contender["optimizer"]]
        if "facts" in study:
            options = study["facts"]["contenders"][label]["options"]
        else:  # the search was made with the options that every contender has; without a search there are no others
            tuned = [run for run in of_optimizer if run.config["seed"] == study["tuning_seed"]]
            usual = (tuned or of_optimizer)[0].config["options"]
            options = {**usual, **contender["options"]}
        return [run for run in of_optimizer if run.config["options"] == options]


def _contender(label: str, study: Study) -> Mapping[str, Any]:
    return next(contender for contender in study["contenders"] if contender["label"] == label)


def _same_setting(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["task"], one["scale"]) == (other["task"], other["scale"])


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9)


def _bytes(files: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = files.extractfile(member)
    assert content is not None
    return content.read()


def _is_study(name: PurePosixPath) -> bool:
    return name.parent.name == "studies" and name.suffix == ".json" and not name.name.endswith(".overhead.json")


def _run(folder: PurePosixPath, contents: Mapping[PurePosixPath, bytes]) -> ArchivedRun:
    manifest, result = (json.loads(contents[folder / name]) for name in ("manifest.json", "result.json"))
    lines = contents[folder / "metrics.jsonl"]
    if result.get("metrics") != hashlib.sha256(lines).hexdigest():
        raise ValueError(f"{folder}/metrics.jsonl is not the file that its run was finished with")
    history = [json.loads(line) for line in lines.splitlines()]
    return ArchivedRun(manifest["config"], result["status"], result["facts"]["seconds"], history)


def verdicts(values: Mapping[str, Mapping[int, float]], reference: str, better: str) -> dict[str, str]:
    """Per contender: better, worse, identical or cannot tell.

    The t-test with Holm's correction and the sign flips must agree. A contender that equals the reference on every seed
    is not tested, and so does not count in Holm's family.
    """
    gains = {label: _gains(by_seed, values[reference], better) for label, by_seed in values.items()}
    tested = {label: gain for label, gain in gains.items() if label != reference and gain.any()}
    t_p = {label: float(stats.ttest_1samp(gain, 0).pvalue) for label, gain in tested.items()}
    corrected = holm(t_p)
    verdict_of = {label: "identical" for label in gains if label not in tested and label != reference}
    for label, gain in tested.items():
        least = max(LEVEL, 2 / 2 ** len(gain))
        sure = len(gain) >= ENOUGH_SEEDS and corrected[label] < LEVEL and sign_flip_p(gain) <= least * (1 + 1e-9)
        verdict_of[label] = ("better" if gain.mean() > 0 else "worse") if sure else "cannot tell"
    return verdict_of


def _gains(values: Mapping[int, float], reference: Mapping[int, float], better: str) -> np.ndarray:
    shared = [seed for seed in reference if seed in values]
    gains = np.array([reference[seed] - values[seed] for seed in shared]) * (1 if better == "lower" else -1)
    if not np.isfinite(gains).all():
        raise ValueError("a run diverged; the verdict of such a table is not recomputed here")
    return gains


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction."""
    corrected, largest = {}, 0.0
    for position, label in enumerate(sorted(p, key=lambda name: p[name])):
        largest = max(largest, (len(p) - position) * p[label])
        corrected[label] = min(1.0, largest)
    return corrected


def sign_flip_p(gains: np.ndarray) -> float:
    """The exact permutation test of scipy of the mean of paired differences."""
    if 2 ** len(gains) > ALL_FLIPS:
        raise ValueError(f"{len(gains)} seeds have too many sign flips to try all of them")
    test = stats.permutation_test(
        (gains,), lambda x, axis: x.mean(axis), permutation_type="samples", vectorized=True, n_resamples=ALL_FLIPS
    )
    return float(test.pvalue)


def ranks(means: Mapping[str, float], better: str) -> dict[str, int]:
    """1 is the best; equal means share the better rank."""
    sign = 1 if better == "lower" else -1
    order = stats.rankdata([sign * mean for mean in means.values()], method="min")
    return dict(zip(means, map(int, order), strict=True))


def average_ranks(means: Mapping[str, Mapping[str, float]], better: Mapping[str, str]) -> dict[str, float]:
    """Per contender, the mean over the tasks of its rank; equal means share the mean of their ranks."""
    rows = []
    for task, by_label in means.items():
        sign = 1 if better[task] == "lower" else -1
        rows.append(dict(zip(by_label, stats.rankdata([sign * value for value in by_label.values()]), strict=True)))
    return {label: float(np.mean([row[label] for row in rows])) for label in rows[0]}


def published_results(path: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's numbers, from the text of the module that holds them: it is read, not imported."""
    nodes = ast.parse(path.read_text()).body
    (results,) = [ast.literal_eval(n.value) for n in nodes if isinstance(n, ast.AnnAssign) and n.value is not None]
    return results
