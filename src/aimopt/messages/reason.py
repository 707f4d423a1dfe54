"""Why something is not available: a value of its own type, so that it is never mistaken for a result.

    program_of(parts, group)      a Program, or Reason("it needs the 'norm' of a whole tensor")
    why_untrusted(path)           None, or a Reason

A text is a clause that fits after a colon or in parentheses, and says what to do where something can be done.
"""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Reason:
    """Why something is not available, or cannot be used."""

    text: str

    def __str__(self) -> str:
        return self.text
