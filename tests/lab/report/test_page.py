"""The page is complete in itself, and what users named stays text in it."""

import hashlib
import re
from base64 import b64encode
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aimopt.lab.report.figures.style import VARIABLES
from trained_findings import (
    report_folder,
)

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share


@pytest.fixture(scope="module")
def folder() -> Path:
    return report_folder()


@pytest.fixture(scope="module")
def page() -> str:
    return (report_folder() / "index.html").read_text()


def svgs(page: str) -> list[ElementTree.Element]:
    drawings = re.findall(r'<svg[^>]*class="plot".*?</svg>|<svg xmlns.*?</svg>', page, re.DOTALL)
    return [ElementTree.fromstring(drawing) for drawing in drawings]


def test_the_page_needs_nothing_else(page: str) -> None:
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {link for link in links if not link.startswith("#")} == {"data:,", "report.md", "tables.tex", "results.csv"}
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_only_the_script_of_the_package_may_run(page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    digest = b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_names_stay_text_in_the_page(page: str, folder: Path) -> None:
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; $x_1$ | 50%" in page
    assert "echo &#39;&lt;b&gt;&#39;" in page
    assert "<script>" not in (folder / "report.md").read_text()


def test_every_anchor_of_the_page_exists_once(page: str) -> None:
    names = re.findall(r'\sid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert {link[1:] for link in re.findall(r'href="(#[^"]+)"', page)} <= set(names)


def test_every_figure_has_a_link_to_itself(page: str) -> None:
    names = re.findall(r'<figure id="([^"]+)"', page)
    assert len(names) >= 15
    for name in names:
        assert f'<a class="anchor" href="#{name}"' in page


def test_figures_take_the_colours_of_the_page_and_carry_a_stamp(page: str) -> None:
    drawings = svgs(page)
    assert len(drawings) >= 15
    for drawing in drawings:
        styles = " ".join(element.get("style", "") for element in drawing.iter())
        assert not set(VARIABLES) & set(re.findall(r"#[0-9a-f]{6}", styles))
        texts = " ".join(element.text or "" for element in drawing.iter())
        assert texts.count("scale demo") == 1  # also under the figures of several studies
        assert drawing.get("aria-label")


def test_a_dollar_sign_in_a_figure_is_no_formula(page: str) -> None:
    texts = [element.text for drawing in svgs(page) for element in drawing.iter() if element.text]
    assert [text for text in texts if "$x_1$" in text]
    assert not [text for text in texts if "mathdefault" in text]
