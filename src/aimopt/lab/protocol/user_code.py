"""Tasks and optimizers of users: every error that their code raises becomes a one-line message.

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
    """Raise a ValueError with this message for any error, also for `sys.exit`, which would end a command as a success.

    Errors of the types `explained` have a clear message and pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, *explained)):  # Ctrl-C is no error of the code
            raise
        raise ValueError(f"{failure}: {explain(error)}") from error
