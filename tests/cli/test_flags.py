"""The command line is a promise: scripts depend on its commands and flags. A change here is a change for users."""

import argparse
import re
from collections.abc import Iterator

import pytest

from aimopt.cli import program

RUNS = "--scale --set --store --engine --workers --threads --devices --processes --gpus --slurm "
RUNS += "--checkpoint-seconds --keep-weights"
STUDIES = f"--grid --seeds --search-steps --option --protocol --dry-run --no-costs --report {RUNS}"
FLAGS = {
    "compare": f"tasks --optimizers --reference --tune --lengths --no-untuned {STUDIES}",
    "sweep": f"task --preset --over --optimizer --save --trust {STUDIES}",
    "explore": f"task --optimizers --reference --rates --rungs --option {RUNS}",
    "run": f"task --optimizer --lr --seed --steps --option --save --trust {RUNS}",
    "overhead": "task --optimizers --reference --scale --set --device --rounds",
    "report": "--out --watch --port store --trust",
    "status": "store --trust",
    "tasks": "",
    "optimizers": "",
    "prepare": "tasks --scale",
    "completion": "shell",
    "bench step": "--models --html --rounds --json --quick",
    "bench train": "--rounds --json --quick",
    "response": "optimizers --lr --set --picture",
    "certify": "--L --sigma2 --nu-min --nu-max --lr --ell-ratio --beta1 --gamma --batch --start --picture",
    "trajectories": "problem --part --steps --seed --picture",
}


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, by name."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield name, parser
    for group in groups:
        for own, command in group.choices.items():
            yield from commands(command, f"{name} {own}".strip())


def arguments(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Its arguments, by flag or name."""
    own = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    return {name: action for action in own for name in (action.option_strings or [action.dest])}


COMMANDS = dict(commands(program()))


def test_the_commands_and_flags_do_not_change() -> None:
    assert {name: set(arguments(parser)) for name, parser in COMMANDS.items()} == {
        name: set(flags.split()) for name, flags in FLAGS.items()
    }


def test_the_help_names_no_default_that_the_protocol_of_a_task_decides() -> None:
    decided_by_protocol = ("--optimizers", "--optimizer", "--reference", "--grid", "--seeds", "--search-steps")
    helps = [
        (f"{name} {flag}", arguments(COMMANDS[name])[flag].help or "")
        for name in ("compare", "sweep", "run", "overhead")
        for flag in set(decided_by_protocol) & set(arguments(COMMANDS[name]))
    ]
    assert len(helps) == 12
    assert [name for name, text in helps if "default: " not in text or "the task's protocol" not in text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_has_a_help_line_that_is_a_phrase(name: str) -> None:
    for flag, action in arguments(COMMANDS[name]).items():
        assert action.help, f"{name} {flag}"
        assert not re.match(r"(of|for|between|such as) ", action.help), f"{name} {flag}: {action.help}"
        assert len(action.help.split()) >= 3, f"{name} {flag}: {action.help}"
