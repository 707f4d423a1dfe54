"""The snippets of README and docs run, each page from top to bottom, and the demo does."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import paper_cost
from aimopt.step.options import OPTIONS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = sorted({*PAGES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("default")
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some snippets write files
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert snippets
    exec(compile("\n".join(snippets), page.name, "exec"), {"__name__": "snippets"})


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]*)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", (page.parent / target if target else page).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("module", ["aimopt", "aimopt.lab", "aimopt.theory"])
def test_every_exported_name_is_documented_and_there(module: str) -> None:
    code = "\n".join(snippet for page in PAGES for snippet in code_of(page.read_text()))
    exported = import_module(module)
    undocumented = [name for name in exported.__all__ if not re.search(rf"(?<!\w){name}(?!\w)", code)]
    assert undocumented == []
    assert all(getattr(exported, name) is not None for name in exported.__all__)


def test_the_guide_lists_every_execution_option_with_its_default() -> None:
    section = (
        (ROOT / "docs" / "guide.md").read_text().partition("## Options of every optimizer")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (`.*?) \| `(.*?)` \|", section, re.MULTILINE)
    shown = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    assert shown == {name: str(option.default) for name, option in OPTIONS.items()}


def code_of(page: str) -> list[str]:
    """What a page shows as code: blocks, and words in backticks. A name may also be an English word elsewhere."""
    block = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    return block.findall(page) + re.findall(r"`([^`\n]+)`", block.sub("", page))


def test_a_heading_is_no_code() -> None:
    page = "# Diagnostics\nSee `watch` and\n```python\nlog_to(x)\n```\n"
    assert code_of(page) == ["```python\nlog_to(x)\n```", "watch"]


def test_importing_needs_torch_alone() -> None:
    """In a fresh interpreter, after torch, the package brings in nothing but itself and the standard library."""
    code = """
import sys, torch
before = {name.partition(".")[0] for name in sys.modules}
import aimopt
aimopt.RADAR
after = {name.partition(".")[0] for name in sys.modules}
print(sorted(after - before - sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['aimopt']"


@pytest.mark.nightly
def test_the_costs_on_a_cluster_are_those_that_the_script_counts(capsys: pytest.CaptureFixture[str]) -> None:
    paper_cost.main()
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("| setting") or re.match(r"\| `[\w-]+` \| \d", line)]
    counted = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("|---")]
    assert [line.replace(" ", "") for line in table] == [line.replace(" ", "") for line in counted]
