"""The runs of an archive, read without aimopt: numpy and the json files are all it takes.

archive = Archive.read([Path("docs/results/mini-1.tar.xz")])
study = archive.study("cifar10-vit", name="compare")
archive.chosen("RADAR", study).rate                   0.005, by the mean of the last three validation losses
archive.finals("RADAR", study)                        {0: 1.6912, 1: 1.6622, …}: seed -> test loss

A file that is not the one its run was finished with is refused.
"""

import ast
import hashlib
import json
import math
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

PUBLISHED = Path(__file__).parents[2] / "src" / "aimopt" / "paper" / "published.py"  # the paper's numbers
SCORED = 3  # the score of a search run is the mean of this many last evaluations
MOMENTUM = (0.5, 0.02)  # the range of 1 − β1 in a search over β1
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
    """What the search chose."""

    rate: float
    at_edge: bool
    momentum: float | None = None  # β1, if it was searched too


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


@dataclass(frozen=True, eq=False)
class Archive:
    """The studies, explorations and runs of one or more archives. Each is read once, so that results can be cached."""

    studies: Sequence[Study]
    explorations: Sequence[Study]
    runs: Sequence[ArchivedRun]
    # Per label and id of a study, which is kept so that no other one gets its id: most of the time went into these.
    _found: dict[tuple[str, int], tuple[Study, list[ArchivedRun]]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "Archive":
        """Read archives; a file that is not the one its run was finished with is refused."""
        studies, explorations, runs = [], [], []
        for path in paths:
            with tarfile.open(path) as files:
                contents = {PurePosixPath(m.name): _bytes(files, m) for m in files.getmembers() if m.isfile()}
            studies += [json.loads(text) for name, text in contents.items() if _is_study(name)]
            explorations += [json.loads(t) for name, t in contents.items() if name.parent.name == "explorations"]
            runs += [_run(name.parent, contents) for name in contents if name.name == "result.json"]
        return cls(studies, explorations, runs)

    def study(self, task: str, **fields: Any) -> Study:
        """The one study of a task with these fields."""
        found = [s for s in self.studies if s["task"] == task and all(s.get(k) == v for k, v in fields.items())]
        if len(found) != 1:
            raise LookupError(f"the archive has {len(found)} studies of {task} with {fields}, not one")
        return found[0]

    def exploration(self, task: str) -> Study:
        """The one exploration of a task."""
        (found,) = (exploration for exploration in self.explorations if exploration["task"] == task)
        return found

    def trials(self, label: str, exploration: Study) -> list[ArchivedRun]:
        """The runs of a contender of an exploration, which has seeds of its own."""
        return [run for run in self._all_of(label, exploration) if run.config["seed"] in exploration["seeds"]]

    def measures(self, study: Study) -> tuple[str, str, str]:
        """The key of the search's measure, the key of the reported one, and which direction is better."""
        if "facts" not in study:
            return MEASURES[study["task"]]
        score, measure = study["facts"]["score"], study["facts"]["measure"]
        return score["key"], measure["key"], measure["better"]

    def finals(self, label: str, study: Study, rate: float | None = None) -> dict[int, float]:
        """Per seed, the last value of the reported measure at the chosen rate, or at a given one."""
        _, key, better = self.measures(study)
        choice = self.chosen(label, study) if rate is None else Choice(rate, at_edge=False)
        runs = {run.config["seed"]: run for run in self._runs_of(label, study) if _is_at(run, choice)}
        return {seed: runs[seed].mean_of_last(key, better, 1) for seed in study["seeds"] if seed in runs}

    def chosen(self, label: str, study: Study) -> Choice:
        """The best rate of the search; of equal ones, the lowest. Without a search, the grid's one rate."""
        label = study.get("rate_of") or label
        if len(study["grid"]) == 1 and not study.get("search"):
            return Choice(self.usual_rate(label, study) * study["grid"][0], at_edge=False)
        if study.get("search"):
            return self._chosen_in_rounds(label, study)
        key, _, better = self.measures(study)
        sign = 1 if better == "lower" else -1
        searched = sorted(self._searched(label, study), key=lambda run: run.config["lr"])
        scores = [sign * run.mean_of_last(key, better, SCORED) for run in searched]
        best = int(np.argmin(scores))
        return Choice(searched[best].config["lr"], at_edge=best in (0, len(scores) - 1))

    def _chosen_in_rounds(self, label: str, study: Study) -> Choice:
        """Of the points that were tried on every tuning seed, the one with the best mean score."""
        key, _, better = self.measures(study)
        sign, seeds = 1 if better == "lower" else -1, study["search"]["seeds"]
        tuned = bool(_contender(label, study).get("tune"))
        scores: dict[tuple[float, float | None], dict[int, float]] = {}
        for run in self._runs_of(label, study):
            if run.config["seed"] in seeds:
                point = run.config["lr"], run.config["options"]["betas"][0] if tuned else None
                scores.setdefault(point, {})[run.config["seed"]] = sign * run.mean_of_last(key, better, SCORED)
        means = {point: np.mean([*by_seed.values()]) for point, by_seed in scores.items() if len(by_seed) == len(seeds)}
        rate, momentum = min(means, key=lambda point: (means[point], point))
        tried = [point[0] for point in scores if point[1] == momentum]
        return Choice(rate, rate in (min(tried), max(tried)), momentum)

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
        if "facts" in study:  # other studies of the archive may have tried more rates
            rates = [factor * self.usual_rate(label, study) for factor in study["grid"]]
            found = [run for run in found if any(_near(run.config["lr"], rate) for rate in rates)]
        if len(found) != len(study["grid"]):
            raise LookupError(f"{label} on {study['task']} has {len(found)} search runs for {len(study['grid'])} rates")
        return found

    def _runs_of(self, label: str, study: Study) -> list[ArchivedRun]:
        """The runs of a contender over the whole schedule, at any rate."""
        return [run for run in self._all_of(label, study) if run.config["steps"] == run.config["settings"]["steps"]]

    def _all_of(self, label: str, study: Study) -> list[ArchivedRun]:
        """All runs of a contender, at any rate and of any length."""
        key = label, id(study)
        if key not in self._found:
            self._found[key] = study, self._find(label, study)
        return self._found[key][1]

    def _find(self, label: str, study: Study) -> list[ArchivedRun]:
        contender = _contender(label, study)
        named = [run for run in self.runs if run.config["optimizer"] == contender["optimizer"]]
        of_optimizer = [run for run in named if _same_setting(run.config, study)]
        if "facts" in study:
            options = study["facts"]["contenders"][label]["options"]
        else:  # the search was made with the options that every contender has; without a search there are no others
            tuned = [run for run in of_optimizer if run.config["seed"] == study["tuning_seed"]]
            usual = (tuned or of_optimizer)[0].config["options"]
            options = {**usual, **contender["options"]}
        tuned = contender.get("tune", [])
        if tuned not in ([], ["beta1"]):
            raise ValueError(f"{label} tunes {tuned}; only a search over beta1 is recomputed here")
        momenta = searched_momenta(study["search"]["points"]) if tuned else [None]
        allowed = [_with_momentum(options, momentum) for momentum in momenta]
        return [run for run in of_optimizer if run.config["options"] in allowed]


def _contender(label: str, study: Study) -> Mapping[str, Any]:
    return next(contender for contender in study["contenders"] if contender["label"] == label)


def searched_momenta(count: int) -> list[float]:
    """The values of β1 in the list of points: Halton's numbers in base 3, even in the logarithm of 1 − β1."""
    low, high = MOMENTUM
    return [round(1 - low * (high / low) ** _halton_number(index, 3), 4) for index in range(1, count + 1)]


def _halton_number(index: int, base: int) -> float:
    """The digits of a number in this base, in reverse order behind the point."""
    digits = np.base_repr(index, base)
    return float(int(digits[::-1], base)) / base ** len(digits)


def _with_momentum(options: Mapping[str, Any], momentum: float | None) -> Mapping[str, Any]:
    return options if momentum is None else {**options, "betas": [momentum, *options["betas"][1:]]}


def _is_at(run: ArchivedRun, choice: Choice) -> bool:
    momentum_agrees = choice.momentum is None or run.config["options"]["betas"][0] == choice.momentum
    return _near(run.config["lr"], choice.rate) and momentum_agrees


def _same_setting(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a run or study belongs to the setting of a study; studies without facts use no other settings."""
    if (one["task"], one["scale"]) != (other["task"], other["scale"]):
        return False
    settings = (_settings(record) for record in (one, other))
    known = [found for found in settings if found is not None]
    return len(known) < 2 or known[0] == known[1]


def _settings(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """All settings of a run's config, or of a study with facts; a run has its learning rate elsewhere."""
    is_run = "seed" in record
    found = record["settings"] if is_run else record.get("facts", {}).get("settings")
    return None if found is None else {name: value for name, value in found.items() if name != "lr"}


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


def published_results(path: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's numbers, from the text of the module that holds them: it is read, not imported."""
    nodes = ast.parse(path.read_text()).body
    (results,) = [ast.literal_eval(n.value) for n in nodes if isinstance(n, ast.AnnAssign) and n.value is not None]
    return results
