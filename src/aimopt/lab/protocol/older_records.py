"""Studies that older versions wrote. Some fields of a study were settings of the task in those versions.

    updated_definition(definition)     a study file of an older version, to be run by the current code
    updated_record(record)             a study in a store of an older version, so that its finished runs are found

The first version wrote neither facts nor search_steps, and weight_decay and other options were settings of the task
(`TaskEntry.former_settings`). The second version wrote search_steps and published results into the facts. The third
version wrote them into the study, but without the source of the published results and the symbols of options.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from aimopt.lab.protocol import import_paths, optimizers, tasks
from aimopt.lab.protocol.facts import Facts
from aimopt.lab.protocol.protocol import is_comparison
from aimopt.lab.protocol.run_config import frozen, usual_options, usual_rate
from aimopt.lab.protocol.schema import Name, fields, integer, list_of, map_of, number, optional, text
from aimopt.lab.protocol.task import MOVED_TO_STUDY
from aimopt.lab.protocol.tasks import TaskEntry
from aimopt.lab.protocol.user_code import explain

_RESULTS = map_of(list_of(number(), length=2))
_TABLE = fields({"source": text, "scale": text, "results": _RESULTS})
# How all reports of the older versions named these options.
_FORMER_SYMBOLS = {"gamma": "γ", "ell_ratio": "ℓ/η", "ell": "ℓ", "delta": "δ", "zeta": "ζ"}
_FORMER_SOURCE = {"source": "the paper", "scale": "paper"}  # of all published results in the older versions
LATER_FIELDS = ("search_steps",)  # fields of a study that the first versions did not write


def updated_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a study, completed by the protocol of its task if an older version wrote it."""
    written = {name: value for name, value in definition.items() if name != "facts"}
    if "search_steps" in written:
        return _completed(written)
    entry = tasks.entry(written["task"])
    protocol = entry.protocol(written["scale"])
    settings, former = _split_settings(written.get("settings", {}), entry)
    task = entry.task.at_scale(written["scale"], settings)
    contenders = []
    for contender in written["contenders"]:
        name = optimizers.canonical(contender["optimizer"])
        usual = {**usual_options(written["task"], protocol, name), **former}
        chosen = {**optimizers.known_options(name, usual), **contender.get("options", {})}
        contenders.append({**contender, "options": chosen, "lr": usual_rate(task, protocol, name)})
    labels = [contender["label"] for contender in contenders]
    published = protocol.published_for(labels)
    updated = {
        **written,
        "contenders": contenders,
        "settings": settings,
        "search_steps": former.get("search_steps", protocol.search_length(task.steps)),
        "published": published and dataclasses.asdict(published),
    }
    if is_comparison(written.get("rate_of"), written.get("axes", ())) and protocol.subject in labels:
        updated["subject"] = protocol.subject
    return _completed(updated)


def updated_record(record: Mapping[str, Any], *, trust: bool) -> tuple[dict[str, Any], Facts]:
    """A stored study and its facts. If no facts are stored, the code of its task and optimizers is loaded."""
    if "facts" in record:
        facts = Facts.from_dict(record["facts"])
        if "search_steps" in record:
            return _completed(record), facts
        integer(1)(facts.settings.get("search_steps"), "search_steps of facts of a study")
        published = record["facts"].get("published", {})
        labels = {contender["label"] for contender in record["contenders"]}
        of_study = {label: mean_and_std for label, mean_and_std in published.items() if label in labels}
        updated = {**record, "search_steps": facts.settings["search_steps"], "published": of_study}
        return _completed(updated), facts
    import_paths.check_trusted([record["task"], *(c["optimizer"] for c in record["contenders"])], trust)
    try:
        return _with_facts_of_code(record)
    except ValueError:
        raise
    except Exception as error:  # loading a task or an optimizer may raise anything
        raise ValueError(explain(error)) from error


def published_shape(value: Any, name: Name) -> None:
    """The shape of published results: with their source, or as the older versions wrote them."""
    (_TABLE if _has_source(value) else optional(_RESULTS))(value, name)


def _has_source(published: Any) -> bool:
    return isinstance(published, Mapping) and isinstance(published.get("source"), str)


def _completed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the source of its published results and the symbols of its axes."""
    published = record.get("published") or None
    if published is not None and not _has_source(published):
        published = {**_FORMER_SOURCE, "results": published}
    symbols = {axis: _FORMER_SYMBOLS[axis] for axis in record.get("axes", ()) if axis in _FORMER_SYMBOLS}
    return {"symbols": symbols, **record, "published": published}


def _with_facts_of_code(record: Mapping[str, Any]) -> tuple[dict[str, Any], Facts]:
    updated = updated_definition(record)
    contenders = {c["label"]: (c["optimizer"], c["options"], c.get("lr")) for c in updated["contenders"]}
    settings = {name: frozen(value) for name, value in updated.get("settings", {}).items()}
    facts = Facts.from_code(updated["task"], updated["scale"], settings, contenders)
    former = _split_settings(record.get("settings", {}), tasks.entry(record["task"]))[1]
    of_runs = {name: value for name, value in former.items() if name not in MOVED_TO_STUDY}
    return updated, dataclasses.replace(facts, settings={**facts.settings, **of_runs})


def _split_settings(settings: Mapping[str, Any], entry: TaskEntry) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two dictionaries: the settings that the task still has, and those that moved to the study."""
    moved = {*entry.former_settings, *MOVED_TO_STUDY}
    return (
        {name: frozen(value) for name, value in settings.items() if name not in moved},
        {name: value for name, value in settings.items() if name in moved},
    )
