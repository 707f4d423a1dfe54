"""The lab is an engine: it names no optimizer, no option of an optimizer, no task and no publication."""

import re
from pathlib import Path

import aimopt
from aimopt.lab.protocol.tasks import available
from aimopt.paper.protocols import SYMBOLS

LAB = Path(aimopt.__file__).parent / "lab"
FILES = sorted(path for path in LAB.rglob("*") if path.suffix in (".py", ".html", ".css", ".js"))
# torch.optim:AdamW stands in examples for any optimizer that is not ours.
TASKS = [f'"{name}"' if name == "digits" else name for name in available()]  # numbers have digits
PLAYERS = [*aimopt.available(), *TASKS, "cifar", "wikitext", "fineweb"]
CONTENT = ["paper", "papers", "Paper", *SYMBOLS, *SYMBOLS.values()]
EXEMPT = {"report/formats/latex.py": [*SYMBOLS.values()]}  # it has a table of characters


def occurrences(path: Path) -> list[str]:
    name = path.relative_to(LAB).as_posix()
    names = [*PLAYERS, *(word for word in CONTENT if word not in EXEMPT.get(name, ()))]
    pattern = re.compile(rf"(?<!torch\.optim:)(?<![\w\\-])({'|'.join(map(re.escape, names))})(?![\w-])")
    lines = path.read_text().splitlines()
    return [f"{name}:{number}: {match[0]}" for number, line in enumerate(lines, 1) if (match := pattern.search(line))]


def test_the_lab_names_no_optimizer_no_task_and_no_publication() -> None:
    assert len(FILES) > 60
    assert [occurrence for path in FILES for occurrence in occurrences(path)] == []
