"""The page in a real browser."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimopt.lab.report import phrasing, write
from browser import CHROMIUM, Browser
from odd_task import NAME
from trained_findings import findings

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.xdist_group("trained"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("report"), findings(), title=NAME, refresh=1000).as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser, url: str) -> Browser:
    """The page, opened anew on a desktop."""
    chromium.resize(1280, 900)
    chromium.prefer("light")
    chromium.open(url)
    return chromium


def test_the_page_loads_without_errors(browser: Browser) -> None:
    assert browser.errors == []
    assert browser.evaluate("document.title") == NAME


def test_the_page_shows_the_results_of_the_analysis(browser: Browser) -> None:
    rows = browser.evaluate(
        "[...document.querySelector('table.results').rows].map(row => [...row.cells].map(cell => cell.innerText))"
    )
    shown = dict(zip(rows[0], rows[1], strict=True))
    for standing in findings()[0].standings:
        assert standing.spread is not None
        numbers = re.findall(r"\d+\.\d+", shown[standing.label])
        assert numbers == [f"{number:.4f}" for number in standing.spread[:2]]
    bold = browser.evaluate("document.querySelector('table.results tbody tr b').innerText")
    best = findings()[0].ranked[0].spread
    assert best is not None
    assert bold == f"{best.mean:.4f}"


def test_names_stay_text(browser: Browser) -> None:
    assert browser.evaluate("document.querySelector('h1').innerText") == NAME
    assert NAME in browser.evaluate("[...document.querySelectorAll('.chip')].map(chip => chip.innerText.trim())")
    assert browser.evaluate("document.scripts.length") == 1 + browser.evaluate(
        "document.querySelectorAll('script.plot-data').length"
    )


def test_a_click_in_the_legend_hides_a_contender_and_another_shows_it(browser: Browser) -> None:
    study, chip = "#compare-odd-task-small-demo", "#compare-odd-task-small-demo .chip[data-series='1']"
    visible = (
        f"[...document.querySelectorAll(\"{study} .plot [data-series='SERIES']\")]"
        ".map(part => getComputedStyle(part).display !== 'none')"
    )
    ours, others = visible.replace("SERIES", "1"), visible.replace("SERIES", "0")
    assert len(browser.evaluate(ours)) > 5
    assert all(browser.evaluate(ours))
    browser.click(chip)
    assert not any(browser.evaluate(ours))
    assert all(browser.evaluate(others))
    assert browser.evaluate(f'document.querySelector("{chip}").ariaPressed') == "false"
    browser.click(chip)
    assert all(browser.evaluate(ours))


def test_the_pointer_over_a_curve_shows_its_numbers(browser: Browser) -> None:
    name = "compare-odd-task-small-demo-curve-valid-loss"
    x, y, width, height = browser.evaluate(
        f"(() => {{ const svg = document.querySelector('#{name} .plot');"
        "svg.scrollIntoView({block: 'center', behavior: 'instant'});"
        f"const box = JSON.parse(document.querySelector('#{name} .plot-data').textContent)[0].box;"
        "const r = svg.getBoundingClientRect(), s = r.width / svg.viewBox.baseVal.width;"
        "return [r.x + box[0] * s, r.y + box[1] * s, box[2] * s, box[3] * s]; })()"
    )
    browser.move(x + width - 2, y + height / 2)
    told = browser.evaluate("document.getElementById('tip').innerText")
    curves = next(curves for curves in findings()[0].curves if curves.measure.key == "valid_loss")
    assert "step 40" in told
    for label, curve in curves.by_contender.items():
        assert re.search(rf"{label}\s+{curve.band[-1].mean:.4g}", told)
    assert browser.evaluate(f"document.querySelectorAll('#{name} .plot.focus .lit').length") > 0
    browser.move(5, 5)
    assert browser.evaluate("document.getElementById('tip').hidden")


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_the_page_never_scrolls_sideways(browser: Browser, width: int) -> None:
    browser.resize(width, 800, mobile=width < 500)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_figures_follow_the_scheme_of_the_system_and_the_button(browser: Browser) -> None:
    ink = "getComputedStyle(document.querySelector('.plot text')).fill"
    light = browser.evaluate(ink)
    browser.prefer("dark")
    dark = browser.evaluate(ink)
    assert dark != light
    browser.click("#theme")
    assert browser.evaluate(ink) == light
    browser.click("#theme")
    assert browser.evaluate(ink) == dark
    browser.evaluate("sessionStorage.clear()")


def test_the_page_shows_the_verdicts_of_the_analysis(browser: Browser) -> None:
    rows = browser.evaluate(
        "[...document.querySelectorAll('#compare-odd-task-small-demo table.verdicts tbody tr')]"
        ".map(row => [row.cells[0].innerText, [...row.cells].at(-1).innerText])"
    )
    assert dict(rows) == {s.label: phrasing.verdict(s.difference) for s in findings()[0].standings if s.difference}


def test_the_page_keeps_its_scroll_position_when_it_reloads(chromium: Browser, tmp_path: Path) -> None:
    page = write(tmp_path, findings()[:1], refresh=0.5)
    chromium.open(page.as_uri())
    chromium.evaluate("scrollTo({top: 700, behavior: 'instant'})")
    chromium.evaluate("document.querySelector('details').open = true")
    chromium.wait_for_load()
    assert chromium.evaluate("scrollY") == pytest.approx(700, abs=1)
    assert chromium.evaluate("document.querySelector('details').open")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_paired_differences_are_in_the_first_screen(browser: Browser, width: int, height: int) -> None:
    browser.resize(width, height, mobile=width < 500)
    top, bottom = browser.evaluate(
        "(() => { const r = document.querySelector('#overview-subject .plot').getBoundingClientRect();"
        "return [r.top, r.bottom]; })()"
    )
    assert 0 < top < bottom < height


def test_sweeps_are_folded_and_a_link_to_a_figure_in_them_opens_them(browser: Browser) -> None:
    folded = "document.querySelector('details.study')"
    assert browser.evaluate(f"{folded}.open") is False
    name = browser.evaluate(f"{folded}.querySelector('figure').id")
    browser.evaluate(f"location.hash = '{name}'")
    assert browser.evaluate(f"{folded}.open") is True
    browser.evaluate("history.replaceState(null, '', location.pathname)")


CURVE = "#compare-odd-task-small-demo-curve-valid-loss"


def press(browser: Browser, name: str) -> None:
    buttons = browser.evaluate(f"[...document.querySelectorAll('{CURVE} .axes button')].map(b => b.textContent)")
    browser.click(f"{CURVE} .axes button:nth-child({buttons.index(name) + 1})")


def test_axes_can_be_logarithmic_and_show_time(browser: Browser) -> None:
    first = findings()[0]
    curves = next(curves for curves in first.curves if curves.measure.key == "valid_loss")
    shown = f"getComputedStyle(document.querySelector('{CURVE} .plot > g:not(.own)')).display"
    texts = f"[...document.querySelectorAll('{CURVE} .own text')].map(text => text.textContent)"
    ends = (
        f"[...document.querySelectorAll('{CURVE} .own svg path[fill=none]')]"
        ".map(p => p.getPointAtLength(p.getTotalLength()).x)"
    )
    assert browser.evaluate(shown) != "none"
    press(browser, "log x")
    assert browser.evaluate(shown) == "none"
    assert "step" in browser.evaluate(texts)
    assert {standing.label for standing in first.standings} <= set(browser.evaluate(texts))
    at_end = browser.evaluate(ends)
    assert at_end == pytest.approx([at_end[0]] * len(at_end), abs=0.1)
    press(browser, "log x")
    assert browser.evaluate(shown) != "none"
    assert browser.evaluate(f"document.querySelectorAll('{CURVE} .own').length") == 0
    assert browser.errors == []
    assert len(curves.by_contender) == len(at_end)


def test_time_is_offered_only_if_the_time_of_every_step_is_known(chromium: Browser, tmp_path: Path) -> None:
    first = findings()[0]
    cost = first.standing("RADAR").cost
    assert cost is not None
    costs = {"RADAR": 0.02, "AdamW": 0.01, "Lion": 0.005}
    standings = [
        dataclasses.replace(s, cost=dataclasses.replace(cost, step_seconds=costs[s.label])) for s in first.standings
    ]
    offered = f"[...document.querySelectorAll('{CURVE} .axes button')].map(b => b.textContent)"
    chromium.resize(1280, 900)
    chromium.open(write(tmp_path / "some", [first], refresh=1000).as_uri())
    assert chromium.evaluate(offered) == ["log x", "log y"]  # Lion has no costs
    timed = dataclasses.replace(first, standings=tuple(standings))
    chromium.open(write(tmp_path / "all", [timed], refresh=1000).as_uri())
    assert chromium.evaluate(offered) == ["log x", "log y", "time"]
    press(chromium, "time")
    ends = chromium.evaluate(
        f"Object.fromEntries([...document.querySelectorAll('{CURVE} .own svg path[fill=none]')]"
        ".map(p => [p.dataset.series, p.getPointAtLength(p.getTotalLength()).x]))"
    )
    labels = [standing.label for standing in first.standings]
    radar, adamw, lion = (ends[str(labels.index(label))] for label in ("RADAR", "AdamW", "Lion"))
    assert adamw / radar == pytest.approx(0.5, abs=0.01)
    assert lion / radar == pytest.approx(0.25, abs=0.01)
    assert chromium.errors == []
