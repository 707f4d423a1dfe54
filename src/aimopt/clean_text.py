r"""Text without characters that a terminal, a browser or a spreadsheet would obey instead of showing.

    printable("Adam\x1b]52;c;…\x07")       'Adam\\x1b]52;c;…\\x07'
    one_line("two\nlines")                  'two lines'
    with clean_output(): ...                whatever is printed is made printable

Names and reasons come from users, from their files and from stores of other people. They are kept as they are; each
output format makes them printable where its text leaves: the terminal here, the forms of a report in `lab/report`.
"""

import contextlib
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, TextIO

KEPT = "\n\t"
# Control and format characters (ESC, NUL, bidi overrides, zero width), surrogates, private and unassigned ones, and
# separators of lines: all that Unicode says to have an effect, or no looks of their own.
REMOVED = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
ORDINARY = re.compile(r"[\n\t -~]*")  # most text: no need to look at each character


def printable(text: str) -> str:
    r"""The text with its escape (`\x1b`) in place of every character that does something; lines and tabs stay."""
    if ORDINARY.fullmatch(text):
        return text
    return "".join(map(_shown, text))


def one_line(text: str) -> str:
    """The text, printable and in one line: a name cannot look like the next line."""
    return printable(" ".join(text.split()))


def _shown(character: str) -> str:
    if character in KEPT or unicodedata.category(character) not in REMOVED:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class CleanStream:
    """A stream to which only printable text goes; in all else it is the stream it stands for."""

    def __init__(self, stream: TextIO):
        # Rich looks for this name: what it writes has its own codes in it, and `lab/console.py` cleans the rest.
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write the text, printable."""
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write them all."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def clean_output() -> Iterator[None]:
    """Let only printable text through to standard output and standard error."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = CleanStream(out), CleanStream(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
