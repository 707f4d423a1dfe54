"""Notebooks as pages: they are run when the site is built, so their outputs are always those of this version.

names()              ["drop_in", "hybrid", …]
files("drop_in")     {"drop_in.md": the page, "drop_in_0.png": its first picture, …}
"""

import base64
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).parents[1] / "notebooks"
SECONDS = 300  # per cell


def names() -> list[str]:
    """The notebooks, in the order in which the page of the notebooks lists them."""
    index = (FOLDER / "README.md").read_text()
    return sorted((path.stem for path in FOLDER.glob("*.ipynb")), key=lambda name: index.find(f"{name}.ipynb"))


def run(name: str) -> Any:
    """The notebook after a run in a new process."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    return nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()


def files(name: str) -> dict[str, str | bytes]:
    """The page of a notebook, and its pictures."""
    pictures: dict[str, str | bytes] = {}
    lines = []
    for cell in run(name).cells:
        if cell.cell_type == "markdown":
            lines += [cell.source, ""]
            continue
        lines += ["```python", cell.source, "```", ""]
        for output in cell.outputs:
            lines += [_output(output, name, pictures), ""]
    notebook = f"[The notebook itself]({name}.ipynb){{ download }}"
    return {f"{name}.md": "\n".join([*lines, f'<p class="notebook" markdown>{notebook}</p>', ""]), **pictures}


def _output(output: Mapping[str, Any], name: str, pictures: dict[str, str | bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}_{len(pictures)}.png"
        pictures[file] = base64.b64decode(data["image/png"])
        return f"![Output of the cell above]({file})"
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    text = output.get("text") or data.get("text/plain", "")
    return f'<pre class="output">{html.escape(text.rstrip())}</pre>'
