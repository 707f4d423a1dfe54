"""Whether a native library may be loaded: what it says runs with all rights of the user.

    why_untrusted(Path(".../libstep.so"))         None, or a sentence that says who else could have written it

The rule is for the library that comes with the package and for any that is kept in a cache: it is a regular file that
lies where its name says, and it and its folder belong to the user or to root and can be written by nobody else. Windows
has no such permission bits: there only the package's own folder is trusted.
"""

import os
import stat
from pathlib import Path

PACKAGE = Path(__file__).parent.resolve()


def why_untrusted(library: Path) -> str | None:
    """Why a library must not be loaded, with what to do about it; None if it may be."""
    real = library.resolve()
    if real.parent != library.parent.resolve():
        return f"{library} is a link to {real}; put the file itself there"
    if not real.is_file():
        return f"{library} is not a regular file; delete it"
    if os.name == "nt":
        return None if real.parent == PACKAGE else f"{library} is not in {PACKAGE}, the only folder trusted on Windows"
    for path in (real, real.parent):
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0):
            return f"{path} belongs to user {status.st_uid}, neither you nor root; install aimopt as yourself"
        if status.st_mode & stat.S_IWOTH:
            return f"{path} can be written by everybody; run: chmod o-w {path}"
        if status.st_mode & stat.S_IWGRP and not _only_the_owner(status):
            return f"{path} can be written by its group; run: chmod g-w {path}"
    return None


def _only_the_owner(status: os.stat_result) -> bool:
    """Whether nobody but its owner is in a file's group: many systems give every user such a group, and umask 002."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:  # without a name, nobody knows who is in it
        return False
    others = {account.pw_name for account in pwd.getpwall() if account.pw_gid == status.st_gid}
    return (others | set(group.gr_mem)) <= {owner.pw_name} and owner.pw_gid == status.st_gid
