"""Only printable text reaches a terminal: no character that it would execute."""

import io
import sys
import unicodedata

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aimopt.cli import main
from aimopt.lab.execution.console import CleanConsole
from aimopt.messages.clean_text import clean_output, one_line, printable

HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\rc\x00d\u202ee\u2028f\x9b2Jg\udc80h\U000e0041i"
SHOWN = r"a\x1b]52;c;ZXZpbA==\x07b\x0dc\x00d\u202ee\u2028f\x9b2Jg\udc80h\U000e0041i"


def test_every_character_with_an_effect_is_escaped() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable(SHOWN) == SHOWN
    for code in (*range(0x10000), *range(0xE0000, 0xE1000)):
        if chr(code) not in "\n\t" and unicodedata.category(chr(code))[0] == "C":
            assert printable(chr(code)).isprintable()


def test_ordinary_text_is_unchanged() -> None:
    text = "RADAR(γ=0.1) ± 3 µs → 50\u202f% of “naïve” 文字\n\tnext"
    assert printable(text) == text


def test_one_line_has_no_line_breaks() -> None:
    assert one_line("a\r\n b\u2028\x1dc\td\x0b") == "a b c d"


def test_the_command_line_escapes_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    valid = HOSTILE.replace("\udc80", "")  # half a pair of surrogates is refused before anything else
    for refused in (["compare", "digits", "--nothing", HOSTILE], ["run", f"{HOSTILE}.toml"], ["compare", HOSTILE]):
        with pytest.raises(SystemExit):
            main(refused)
    assert main(["run", f"{valid.replace(chr(0), '')}.toml"]) == 2
    assert main(["compare", valid]) == 2
    shown = capsys.readouterr().err
    assert shown.count(SHOWN[:12]) >= 5
    assert not set(HOSTILE) & set(shown) - set("abcdefghi]52;ZXpA=J")


def test_output_outside_the_context_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with clean_output():
        sys.stdout.writelines(["\x07", "\n"])
        assert sys.stdout.encoding == before.encoding
    assert sys.stdout is before
    print("\x07")
    assert capsys.readouterr().out == "\\x07\n\x07\n"


def test_a_console_keeps_only_its_own_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with clean_output():
        console = CleanConsole(force_terminal=True, width=200, color_system="standard", legacy_windows=False)
        table = Table()
        table.add_column(HOSTILE)
        table.add_row(Text(HOSTILE, style="red"))
        with Live(table, console=console, auto_refresh=False):
            console.print(Text(HOSTILE), table, markup=False)
            print(HOSTILE)  # Rich takes it while it shows something live
    shown = capsys.readouterr().out
    assert "\x1b[31m" in shown
    assert "\x1b]" not in shown
    assert not set("\x07\x00\u202e\u2028\x9b\udc80\U000e0041") & set(shown)
    plain = io.StringIO()
    Console(file=plain, width=200, force_terminal=True).print(Text(HOSTILE))
    assert "\x1b]52" in plain.getvalue()  # what the test above is about
