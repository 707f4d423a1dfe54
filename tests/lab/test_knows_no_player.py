"""The lab is an engine: it contains no optimizer's name, no task's name and no option of an optimizer."""

import re
from pathlib import Path

import aimopt
from aimopt.lab.protocol.tasks import available
from aimopt.optimizers.option_symbols import SYMBOLS

LAB = Path(aimopt.__file__).parent / "lab"
FILES = sorted(path for path in LAB.rglob("*") if path.suffix in (".py", ".html", ".css", ".js"))
# torch.optim:AdamW stands in examples for any optimizer that is not ours.
TASKS = [f'"{name}"' if name == "digits" else name for name in available()]  # numbers have digits
NAMES = [*aimopt.available(), *TASKS, *SYMBOLS, "cifar", "wikitext", "fineweb"]


def test_the_lab_names_no_optimizer_and_no_task() -> None:
    assert len(FILES) > 60
    pattern = re.compile(rf"(?<!torch\.optim:)(?<![\w\\-])({'|'.join(map(re.escape, NAMES))})(?![\w-])")
    found = [
        f"{path.relative_to(LAB)}:{number}: {match[0]}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (match := pattern.search(line))
    ]
    assert found == []
