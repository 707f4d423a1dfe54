"""The snippets of README and docs run, each page from top to bottom, and the demo does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("default")
def test_snippets_run(page: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert snippets
    exec(compile("\n".join(snippets), page.name, "exec"), {"__name__": "snippets"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]*)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", (page.parent / target if target else page).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


def test_importing_needs_torch_alone() -> None:
    """In a fresh interpreter that, after torch, refuses everything the extras bring."""
    refused = ("numpy", "scipy", "sklearn", "rad", "pytorch_optimizer")
    code = f"""
import sys, torch
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import aimopt
aimopt.RADAR([torch.zeros(1, requires_grad=True)])
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=os.environ)
