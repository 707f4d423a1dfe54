"""The documentation site: notebooks run, every public name is in the reference, and a browser has no complaint."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import gallery
import reference
from browser import CHROMIUM, Browser

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PHONE = 390  # pixels


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_notebooks_run(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the site runs them, but in this process, which has imported torch."""
    monkeypatch.chdir(notebook.parent)  # those that write files go to a folder of their own
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells(notebook):
        code = "".join(cell["source"])
        if file := re.match(r"%%writefile (\S+)\n", code):
            Path(file[1]).write_text(code[file.end() :])
        else:
            exec(compile(code, notebook.name, "exec"), names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(notebook: Path) -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(notebook))


def test_there_are_five_notebooks_and_their_page_lists_them() -> None:
    index = (ROOT / "docs" / "notebooks" / "README.md").read_text()
    assert {path.name for path in NOTEBOOKS} == set(re.findall(r"\]\((\w+\.ipynb)\)", index))
    assert len(NOTEBOOKS) >= 5


def test_every_picture_has_a_caption_and_a_command() -> None:
    page = gallery.page()
    for path in (ROOT / "docs" / "images").iterdir():
        assert f"images/{path.name})" in page
    for _, _, command in gallery.PICTURES.values():
        script = re.match(r"python (\S+)", command)
        assert script is None or (ROOT / script[1]).exists()


@pytest.mark.parametrize("module", reference.modules())
def test_every_public_name_has_a_docstring_for_the_reference(module: str) -> None:
    assert import_module(module).__doc__
    for name, definition in reference.names(module).items():
        home, _, own_name = definition.rpartition(".")
        if definition:
            assert getattr(import_module(home), own_name).__doc__, f"{module}.{name}"


class Links(HTMLParser):
    """What a page refers to, what it loads, and the anchors that it has."""

    def __init__(self, page: Path):
        super().__init__()
        self.hrefs, self.loaded, self.anchors = list[str](), list[str](), set[str]()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.hrefs.append(values["href"])
        elif tag in ("script", "img", "iframe", "source"):
            self.loaded.append(values.get("src", ""))
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "modulepreload"):
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def broken_links(site: Path) -> Iterator[str]:
    pages = {page: Links(page) for page in sorted(site.rglob("*.html"))}
    for page, links in pages.items():
        for href in links.hrefs:
            url = urlsplit(href)
            if url.scheme or (page.name == "404.html" and href.startswith("/")):
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (url.fragment and unquote(url.fragment) not in pages[target].anchors):
                yield f"{page.relative_to(site)} -> {href}"


@pytest.mark.nightly
def test_no_link_is_broken_and_nothing_comes_from_the_internet(site: Path) -> None:
    assert list(broken_links(site)) == []
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            assert [source for source in Links(page).loaded if urlsplit(source).scheme not in ("", "data")] == []


@pytest.mark.nightly
def test_the_reference_has_every_public_name(site: Path) -> None:
    for module in reference.modules():
        anchors = Links(site / "api" / f"{module}.html").anchors
        missing = [
            name for name, definition in reference.names(module).items() if definition and definition not in anchors
        ]
        assert missing == []


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_pages_open_without_errors_and_fit_a_phone(site: Path, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        for width, mobile in ((1280, False), (PHONE, True)):
            browser.resize(width, 844, mobile=mobile)
            for page in sorted(site.rglob("*.html")):
                if page.name == "404.html":  # it is for a server, with addresses from its root
                    continue
                browser.open(page.as_uri())
                wide = browser.evaluate("document.documentElement.scrollWidth")
                assert (page.name, browser.errors, wide <= width) == (page.name, [], True)


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_search_works_on_a_page_that_was_opened_as_a_file(site: Path, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.resize(1280, 844)
        browser.open((site / "index.html").as_uri() + "?q=checkpoint")
        found = browser.evaluate(
            "new Promise(resolve => { const begin = Date.now(); const look = () => {"
            "const count = document.querySelectorAll('.md-search-result__item').length;"
            "count || Date.now() - begin > 20000 ? resolve(count) : setTimeout(look, 100); }; look(); })"
        )
        assert found > 0
        assert browser.errors == []
