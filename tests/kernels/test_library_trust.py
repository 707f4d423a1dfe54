"""A native library that other users could have written is not loaded; steps are then not fused."""

import os
import pwd
import shutil
import sys
from pathlib import Path

import pytest
from test_build import python

import aimopt
from aimopt.kernels.cpu.trust import why_untrusted
from aimopt.messages.reason import Reason

NOBODY = 65534
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no permission bits")
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "lib.so"
    path.parent.mkdir(mode=0o755)
    path.write_bytes(b"")
    path.chmod(0o755)
    return path


def test_a_file_that_only_the_user_can_write_is_trusted(library: Path) -> None:
    assert why_untrusted(library) is None
    elsewhere = library.parent.parent / "the same folder by another name"
    elsewhere.symlink_to(library.parent)
    assert why_untrusted(elsewhere / library.name) is None


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_that_everybody_can_write_is_not_trusted(library: Path, what: str) -> None:
    path = library if what == "file" else library.parent
    path.chmod(0o757)
    assert why_untrusted(library) == Reason(f"{path} can be written by everybody; run: chmod o-w {path}")
    path.chmod(0o755)
    assert why_untrusted(library) is None


def test_a_file_that_its_group_can_write_is_trusted_only_in_a_private_group(library: Path) -> None:
    library.chmod(0o775)
    own = pwd.getpwuid(os.geteuid())
    others = {a.pw_name for a in pwd.getpwall() if a.pw_gid == own.pw_gid and a.pw_name != own.pw_name}
    if os.geteuid() == 0:
        shared = next((a.pw_gid for a in pwd.getpwall() if a.pw_gid != own.pw_gid), NOBODY)
        os.chown(library, 0, shared)
        assert why_untrusted(library) == Reason(f"{library} can be written by its group; run: chmod g-w {library}")
        os.chown(library, 0, own.pw_gid)
    if not others and library.stat().st_gid == own.pw_gid:
        assert why_untrusted(library) is None


@as_root
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_of_another_user_is_not_trusted(library: Path, what: str) -> None:
    path = library if what == "file" else library.parent
    os.chown(path, NOBODY, -1)
    assert f"{path} belongs to user {NOBODY}, neither you nor root" in str(why_untrusted(library))


def test_links_and_folders_are_not_trusted(library: Path, tmp_path: Path) -> None:
    (tmp_path / "other.so").write_bytes(b"")
    library.unlink()
    library.symlink_to(tmp_path / "other.so")
    assert f"{library} is a link to {tmp_path / 'other.so'}" in str(why_untrusted(library))
    library.unlink()
    library.mkdir()
    assert f"{library} is not a regular file" in str(why_untrusted(library))


def test_steps_are_not_fused_with_a_library_that_everybody_can_write(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    package = shutil.copytree(Path(aimopt.__file__).parent, tmp_path / "aimopt", ignore=ignored)
    built = next((package / "kernels" / "cpu").glob("libstep*"), None)
    if built is None:
        pytest.skip("the package was installed without its kernel")
    code = f"""
import os, torch, aimopt
from aimopt import kernels
from aimopt.kernels.cpu.library import load_library
for mode in (0o757, 0o755):
    os.chmod({str(built)!r}, mode)
    load_library.cache_clear()
    print(kernels.status()["fused, CPU"])
    p = torch.ones(3, requires_grad=True)
    p.grad = torch.ones(3)
    aimopt.RADAR([p], lr=0.1).step()
    assert p.max() < 1
"""
    refused, loaded = python(code, tmp_path).splitlines()
    assert refused == f"off: {built} can be written by everybody; run: chmod o-w {built}"
    assert loaded.startswith("on:")
