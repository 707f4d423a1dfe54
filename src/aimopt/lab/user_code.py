"""Code that users bring, tasks and optimizers: whatever it raises becomes a sentence.

with user_code("mine.py cannot be loaded"):
    ...                                          ValueError: mine.py cannot be loaded: KeyError: 'x'
"""

import contextlib
from collections.abc import Iterator


def explain(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextlib.contextmanager
def user_code(failure: str, *, explained: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Say what failed, whatever was raised: also `sys.exit` must not end a command as if it were done.

    Errors that are `explained` already pass.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, *explained)):  # Ctrl-C is the user's, not the code's
            raise
        raise ValueError(f"{failure}: {explain(error)}") from error
