"""Studies that older versions wrote. Some fields of a study were settings of the task in those versions.

    updated_definition(definition)     a study file of an older version, to be run by the current code
    updated_record(record)             a study in a store of an older version, so that its finished runs are found

Neither older version wrote search_steps into the study. Weight decay and other options were settings of the task
(`TaskEntry.former_settings`), published results and symbols were those of the task's protocol. The first version wrote
no facts.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from aimopt.lab.protocol import import_paths, optimizers, tasks
from aimopt.lab.protocol.facts import Facts
from aimopt.lab.protocol.protocol import is_comparison
from aimopt.lab.protocol.run_config import frozen, usual_options, usual_rate
from aimopt.lab.protocol.schema import integer
from aimopt.lab.protocol.task import MOVED_TO_STUDY
from aimopt.lab.protocol.tasks import TaskEntry
from aimopt.lab.protocol.user_code import explain

LATER_FIELDS = ("search_steps",)  # fields of a study that the older versions did not write


def updated_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a study, completed by the protocol of its task if an older version wrote it."""
    written = {name: value for name, value in definition.items() if name != "facts"}
    if "search_steps" in written:
        return written
    entry = tasks.entry(written["task"])
    protocol = entry.protocol(written["scale"])
    settings, former = _split_settings(written.get("settings", {}), entry)
    _check_options(written, entry, former)
    task = entry.task.at_scale(written["scale"], settings)
    contenders = []
    for contender in written["contenders"]:
        name = optimizers.canonical(contender["optimizer"])
        usual = {**usual_options(written["task"], protocol, name), **former}
        chosen = {**optimizers.known_options(name, usual), **contender.get("options", {})}
        contenders.append({**contender, "options": chosen, "lr": usual_rate(task, protocol, name)})
    labels = [contender["label"] for contender in contenders]
    published, axes = protocol.published_for(labels), written.get("axes", ())
    updated = {
        **written,
        "contenders": contenders,
        "settings": settings,
        "search_steps": former.get("search_steps", protocol.search_length(task.steps)),
        "published": published and dataclasses.asdict(published),
        "symbols": {axis: protocol.symbols[axis] for axis in axes if axis in protocol.symbols},
    }
    if is_comparison(written.get("rate_of"), axes) and protocol.subject in labels:
        updated["subject"] = protocol.subject
    return updated


def updated_record(record: Mapping[str, Any], *, trust: bool) -> tuple[dict[str, Any], Facts]:
    """A stored study and its facts. If no facts are stored, the code of its task and optimizers is loaded."""
    names = [record["task"], *(contender["optimizer"] for contender in record["contenders"])]
    if "facts" not in record:
        import_paths.check_trusted(names, trust)
        try:
            return _with_facts_of_code(record)
        except ValueError:
            raise
        except Exception as error:  # loading a task or an optimizer may raise anything
            raise ValueError(explain(error)) from error
    facts = Facts.from_dict(record["facts"])
    if "search_steps" in record:
        return dict(record), facts
    integer(1)(facts.settings.get("search_steps"), "search_steps of facts of a study")
    search_steps = facts.settings["search_steps"]
    if any(":" in name for name in names):
        return {**record, "search_steps": search_steps}, facts  # its code is not loaded
    try:
        return {**updated_definition(record), "search_steps": search_steps}, facts
    except ValueError:  # its task is not installed, or has changed: the facts are enough to read its runs
        return {**record, "search_steps": search_steps}, facts


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


def _check_options(written: Mapping[str, Any], entry: TaskEntry, former: Mapping[str, Any]) -> None:
    """Refuse a changed setting that has become something else than an option of the same name."""
    contenders = [contender["optimizer"] for contender in written["contenders"]]
    for name, value in former.items():
        options = [optimizers.known_options(optimizer, {name: value}) for optimizer in contenders]
        if name not in MOVED_TO_STUDY and not any(options) and value != entry.former_settings[name]:
            raise ValueError(
                f"{name}={value!r} was a setting of {written['task']} in an older version, and no contender has an "
                "option of this name; leave it out, and give each contender the options that it stands for"
            )
