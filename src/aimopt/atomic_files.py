"""Files that are written whole or not at all.

    write_atomically(path, content)                     bytes, or text as UTF-8
    with atomic_replacement(path) as temporary_path:    for code that writes to a path itself
        make_tokens(temporary_path)

The content goes to a hidden temporary file in the same folder, which then takes the name of the target in one operation
of the file system. So a reader sees the old content or the new one, never a part of it, whatever happens to the writer:
an exception, a full disk, `kill -9`, or another process that writes the same file.
"""

import contextlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{8}")


def write_atomically(path: str | Path, content: str | bytes | memoryview, *, durable: bool = True) -> None:
    """Replace the content of a file. Folders that do not exist are made.

    `durable` waits until the disk has the content, so that it survives a power failure.
    """
    with atomic_replacement(path) as temporary_path, open(temporary_path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_replacement(path: str | Path) -> Iterator[Path]:
    """Give a temporary path to write to; when the block ends without an exception, that file replaces `path`.

    An existing file keeps its permissions. A symbolic link is replaced, not followed: files that come from elsewhere
    must not lead a writer out of their folder. Where the block fails, the temporary file is removed and `path` stays as
    it was; an `OSError` then names `path`.
    """
    path = Path(path)
    temporary_path = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    permissions = _permissions(path)
    try:
        yield temporary_path
        if permissions is not None:
            os.chmod(temporary_path, permissions)
        os.replace(temporary_path, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary_path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:  # the error of a full disk has no file name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def is_temporary(path: Path) -> bool:
    """Whether a file is a temporary one of this module; if no process is writing it, its writer was killed."""
    return _TEMPORARY_NAME.fullmatch(path.name) is not None


def _permissions(path: Path) -> int | None:
    """The permissions of an existing regular file; None where there is none."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ValueError(f"{path} is a device, which cannot be replaced by a file; give another path")
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None
