"""Whether a native library may be loaded: its code runs with all rights of the user.

    why_untrusted(Path(".../libstep.so"))         None, or a Reason that says who else could have written it

The rule is for the library of the package and for libraries in a cache. A library must be a regular file, not a link.
It and its folder must belong to the user or to root, and nobody else may be able to write to them. Windows has no such
permission bits: there only the package's own folder is trusted.
"""

import os
import stat
from pathlib import Path

from aimopt.messages.reason import Reason

PACKAGE = Path(__file__).parent.resolve()


def why_untrusted(library: Path) -> Reason | None:
    """Why a library must not be loaded, and what to do; None if it may be loaded."""
    real = library.resolve()
    if real.parent != library.parent.resolve():
        return Reason(f"{library} is a link to {real}; put the file itself there")
    if not real.is_file():
        return Reason(f"{library} is not a regular file; delete it")
    if os.name == "nt":
        if real.parent == PACKAGE:
            return None
        return Reason(f"{library} is not in {PACKAGE}, the only folder trusted on Windows")
    for path in (real, real.parent):
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0):
            return Reason(f"{path} belongs to user {status.st_uid}, neither you nor root; install aimopt as yourself")
        if status.st_mode & stat.S_IWOTH:
            return Reason(f"{path} can be written by everybody; run: chmod o-w {path}")
        if status.st_mode & stat.S_IWGRP and not _is_private_group(status):
            return Reason(f"{path} can be written by its group; run: chmod g-w {path}")
    return None


def _is_private_group(status: os.stat_result) -> bool:
    """Whether the owner is the only member of a file's group: many systems have such groups, with umask 002."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:  # a group without a name: its members are unknown
        return False
    others = {account.pw_name for account in pwd.getpwall() if account.pw_gid == status.st_gid}
    return (others | set(group.gr_mem)) <= {owner.pw_name} and owner.pw_gid == status.st_gid
