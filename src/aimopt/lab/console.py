"""The lab's terminal: Rich's, on which names and reasons are made printable before they are laid out."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from aimopt.clean_text import printable


class CleanConsole(Console):
    """A console whose text is printable. Rich's own codes, for colours and the cursor, are not part of the text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything that is shown comes through here, the cells of a table as well."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
