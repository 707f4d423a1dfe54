"""Suggestions for an unknown name: the closest known name, or all known names."""

import difflib
from collections.abc import Iterable

# What other libraries call a hyperparameter of ours.
SYNONYMS = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "l2": "weight_decay",
    "epsilon": "eps",
}


def suggestion(name: str, known: Iterable[str]) -> str:
    """A question with the closest known name, or a list of all known names if none is close."""
    names = list(known)
    if SYNONYMS.get(name) in names:
        return f"did you mean {SYNONYMS[name]!r}?"
    in_lower_case = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), in_lower_case, n=1)
    return f"did you mean {in_lower_case[close[0]]!r}?" if close else f"known are {', '.join(names)}"
