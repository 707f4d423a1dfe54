"""A name that is not known: what was probably meant, or else what there is."""

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """The known name that is closest, as a question; all of them where none is close."""
    names = list(known)
    in_lower_case = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), in_lower_case, n=1)
    return f"did you mean {in_lower_case[close[0]]!r}?" if close else f"known are {', '.join(names)}"
