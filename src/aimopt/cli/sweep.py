"""`aimopt sweep`: one optimizer over values of its options, a preset, or a study from a file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aimopt.cli.arguments import Subparsers, add_assignments, command, path, python_literal
from aimopt.cli.lab_arguments import (
    add_study_arguments,
    add_trust,
    from_file,
    protocol_of,
    refuse_options_stated_in_file,
    run_studies,
    save,
    study_fields,
)
from aimopt.lab.defaults import SCALE

if TYPE_CHECKING:
    from aimopt.lab import Study


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "sweep",
        "train one optimizer over values of its options, or run a preset or a study from a file",
        "aimopt sweep digits --over gamma=0,0.1,0.2 --over ell_ratio=0,0.01",
        _sweep,
        extra="lab",
    )
    parser.add_argument("task", help="task by name or import path, or a file with a study (study.toml)")
    parser.add_argument(
        "--preset", help="name of a ready-made study: ablation, heatmap, delta, zeta, table1, or an installed one"
    )
    add_assignments(parser, "--over", "option and its values; may be repeated", metavar="NAME=V,V")
    parser.add_argument(
        "--optimizer", help="optimizer with the options that are varied (default: the subject of the task's protocol)"
    )
    parser.add_argument("--save", type=path, metavar="FILE", help="write the study to a TOML file and stop")
    add_trust(parser)
    add_study_arguments(parser)


def _sweep(arguments: argparse.Namespace) -> int:
    study = _study(arguments)
    study.check()
    if arguments.save is not None:
        return save(arguments.save, study.to_dict(), "sweep", study.task_and_optimizers())
    return run_studies([study], arguments)


def _study(arguments: argparse.Namespace) -> "Study":
    from aimopt.lab import sensitivity
    from aimopt.lab.protocol import presets, study_files

    if Path(arguments.task).suffix in study_files.ENDINGS:
        refuse_options_stated_in_file(arguments, "preset", "over", "optimizer", "scale", "set", "option", "protocol")
        return from_file(arguments.task, lambda content: _study_in_file(content, arguments))
    if arguments.over and arguments.preset:
        raise ValueError(f"--over and --preset {arguments.preset} exclude each other; give only one")
    scale = arguments.scale or SCALE
    protocol = protocol_of(arguments.task, scale, arguments.protocol)
    fields = {"options": arguments.option, **study_fields(arguments)}
    if arguments.optimizer is not None:
        fields["optimizer"] = arguments.optimizer
    if arguments.preset:
        if arguments.protocol is not None:
            fields["protocol"] = protocol
        return presets.study(arguments.preset, arguments.task, scale, **fields)
    axes = {name: _values(name, value) for name, value in arguments.over.items()}
    if not axes:
        known = ", ".join(presets.available())
        raise ValueError(f"give the options to sweep: --over gamma=0,0.1 or --preset NAME (known are {known})")
    return sensitivity(arguments.task, scale, axes, protocol=protocol, **fields)


def _study_in_file(content: dict[str, Any], arguments: argparse.Namespace) -> "Study":
    """The study that a file defines; facts in the file are ignored, because the current code decides what is run."""
    from aimopt.lab import Study

    definition = {name: value for name, value in content.items() if name != "facts"} | study_fields(arguments)
    if arguments.task.endswith(".json"):  # from a store; if an older version wrote it, its finished runs must be found
        return Study.from_record(definition, trust=arguments.trust)
    return Study.from_dict(definition, trust=arguments.trust)


def _values(name: str, value: Any) -> tuple[Any, ...]:
    """The values of an option; texts may be among them: exact,False."""
    if isinstance(value, str):
        return tuple(python_literal(part) for part in value.split(","))
    values = value if isinstance(value, tuple) else (value,)
    if not values:
        raise ValueError(f"--over {name} has no values; write --over {name}=0,0.1")
    return values
