"""What mkdocs does not know by itself: pages that are made from other files, and links out of the folder docs.

README.md                 the first page; CHANGELOG.md, CONTRIBUTING.md, …: pages of their own
docs/notebooks/*.ipynb    run, and shown with their outputs
src/aimopt                the API reference, one page per public module
docs/*.md                 every page is in the navigation, also one that `ORDER` does not name
"""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import gallery
import notebook_pages
import reference

ROOT = Path(__file__).parents[2]
# Files of the repository that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
}
# Files and folders whose files the site offers as they are.
COPIED = ("CITATION.cff", "LICENSE", "examples", "benchmarks")
# The pages of docs that a reader may want in this order; others follow by name.
ORDER = (
    "guide",
    "choosing",
    "trainers",
    "distributed",
    "jax",
    "speed",
    "lab",
    "tasks",
    "reproduction",
    "conditions",
    "exploration",
    "table1",
    "reproduction-mini-1",
    "cluster",
    "theory",
    "derivations",
)
REMOTE_WORKER = "https://unpkg.com/iframe-worker/shim"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Make the navigation."""
    present = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    pages = [name for name in ORDER if name in present] + [name for name in present if name not in ORDER]
    config.nav = [
        {"Start": "index.md"},
        *(f"{name}.md" for name in pages),
        {"Notebooks": ["notebooks/README.md", *(f"notebooks/{name}.md" for name in notebook_pages.names())]},
        {"Gallery": "gallery.md"},
        {"API reference": [reference.path(module) for module in reference.modules()]},
        {"Project": [page for page in PAGES.values() if page != "index.md"]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files that are not in the folder docs."""

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    for source, page in PAGES.items():
        add(page, (ROOT / source).read_text())
    for name in COPIED:
        for path in sorted((ROOT / name).glob("*.py")) if (ROOT / name).is_dir() else [ROOT / name]:
            add(path.relative_to(ROOT).as_posix(), path.read_bytes())
    add("gallery.md", gallery.page())
    for name in ("site.css", "file_worker.js"):
        add(f"assets/{name}", Path(__file__).with_name(name).read_text())
    for module in reference.modules():
        add(reference.path(module), reference.page(module))
    for name in notebook_pages.names():
        for file, content in notebook_pages.files(name).items():
            add(f"notebooks/{file}", content)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links lead to pages of the site, and begin every list after an empty line, as Python-Markdown wants it."""
    source = page.file.src_uri
    inside_docs = source not in PAGES.values()
    base = (ROOT / "docs" / source).parent if inside_docs else ROOT
    depth = "../" * source.count("/")

    def replace(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.groups()
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = _site_path((base / target).resolve())
        return f"{picture}[{text}]({depth}{path}{anchor})" if path else text

    return _outside_fences(markdown, lambda text: _separate_lists(LINK.sub(replace, text)))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take the script that searches without a server from the site: the theme would load one from the internet."""
    return output.replace(REMOTE_WORKER, f"{'../' * page.file.dest_uri.count('/')}assets/file_worker.js")


def _site_path(path: Path) -> str | None:
    """Where the site has a file of the repository; None if it does not."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if name in PAGES:
        return PAGES[name]
    if name.partition("/")[0] in COPIED:
        return name
    if name.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", name.removeprefix("docs/"))
    return None


def _outside_fences(markdown: str, change: Any) -> str:
    """Change the text between the blocks of code."""
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _separate_lists(text: str) -> str:
    return re.sub(r"(?m)^(?! *[-*|>#]| *\d+\. |$)(.*\S.*)\n(?=(?:[-*]|\d+\.) )", r"\1\n\n", text)
