r"""The terminal of the lab: a Rich console that makes all text printable.

    CleanConsole().print("a\x1b]52;c;name")       the escape code is shown, not obeyed

Names and reasons come from users and their files, and may contain control characters.
"""

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from aimopt.messages.clean_text import printable


class CleanConsole(Console):
    """A console with printable text. The codes of Rich itself, for colours and the cursor, are no text and stay.

    It writes to the terminal itself: a command wraps its output into a stream that shows every code as text, and a
    table that refreshes itself wraps that stream once more.
    """

    def __init__(self, **options: Any):
        super().__init__(**{"file": _unwrapped(sys.stdout), **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render text. Everything that is shown passes through here, including the cells of a table."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def _unwrapped(stream: IO[str]) -> IO[str]:
    """The stream behind all wrappers of Rich's kind."""
    while (inner := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = inner
    return stream
