r"""Text without characters that a terminal, a browser or a spreadsheet program would execute instead of showing.

    printable("Adam\x1b]52;c;…\x07")       'Adam\\x1b]52;c;…\\x07'
    one_line("two\nlines")                  'two lines'
    with clean_output(): ...                all printed text is made printable

Names and error texts come from users, from their files and from stores of other people. They are stored unchanged; each
output makes them printable at its own end: the terminal here, the formats of a report in `lab/report`.
"""

import contextlib
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, TextIO

ALLOWED = "\n\t"
# Control and format characters (ESC, NUL, bidi overrides, zero width), surrogates, private and unassigned characters,
# and line separators: all characters that have an effect or are invisible.
ESCAPED_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
ORDINARY = re.compile(r"[\n\t -~]*")  # most text is like this, and needs no check per character


def printable(text: str) -> str:
    r"""The text with an escape (`\x1b`) for every character that has an effect; line breaks and tabs stay."""
    if ORDINARY.fullmatch(text):
        return text
    return "".join(map(_escaped, text))


def one_line(text: str) -> str:
    """The text, printable and in one line, so that a name cannot look like another line."""
    return printable(" ".join(text.split()))


def _escaped(character: str) -> str:
    if character in ALLOWED or unicodedata.category(character) not in ESCAPED_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class CleanStream:
    """A stream that writes only printable text; otherwise it behaves like the stream that it wraps."""

    def __init__(self, stream: TextIO):
        # Rich looks for this name and writes its own control codes to it; `lab/execution/console.py` cleans its text.
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write the text, with escapes."""
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write all lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def clean_output() -> Iterator[None]:
    """Write only printable text to standard output and standard error."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = CleanStream(out), CleanStream(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
