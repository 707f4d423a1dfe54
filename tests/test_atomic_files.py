"""A file is written whole or not at all, whatever happens to its writer."""

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aimopt.atomic_files import atomic_replacement, is_temporary, write_atomically


def test_text_bytes_and_missing_folders(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "folder" / "text", "θ\n")
    assert (tmp_path / "new" / "folder" / "text").read_bytes() == "θ\n".encode()
    write_atomically(str(tmp_path / "bytes"), memoryview(b"\0\1"), durable=False)
    assert (tmp_path / "bytes").read_bytes() == b"\0\1"
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "bytes", 3)  # type: ignore[arg-type]
    assert (tmp_path / "bytes").read_bytes() == b"\0\1"


def test_durable_content_reaches_the_disk_before_the_file_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = tmp_path / "file", []
    fsync = os.fsync

    def recording_fsync(file: int) -> None:
        synced.append(target.exists())
        fsync(file)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    write_atomically(target, b"content", durable=False)
    assert synced == []
    target.unlink()
    write_atomically(target, b"content")
    assert synced == [False]


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt(), OSError("no error number")])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def interrupted() -> None:
        with atomic_replacement(target) as temporary_path:
            temporary_path.write_text("half of the n")
            assert is_temporary(temporary_path)
            assert target.read_text() == "old"
            raise error

    with pytest.raises(type(error)) as raised:
        interrupted()
    assert raised.value is error
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"


def test_a_full_disk_is_reported_with_the_path(tmp_path: Path) -> None:
    """A limit on the size of files acts as a full disk does: a file can be made but not written."""
    target = tmp_path / "file"
    target.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            write_atomically(target, b"new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.filename == str(target)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"


def test_a_killed_writer_leaves_the_old_file_and_a_file_that_is_known_as_temporary(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    code = """
import os, signal, sys
from aimopt.atomic_files import atomic_replacement
with atomic_replacement(sys.argv[1]) as temporary_path:
    temporary_path.write_text("half of the n")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    (left_over,) = [path for path in tmp_path.iterdir() if path != target]
    assert is_temporary(left_over)
    assert not is_temporary(target)


def test_two_processes_that_write_one_file_never_mix(tmp_path: Path) -> None:
    target = tmp_path / "file"
    code = """
import sys
from aimopt.atomic_files import write_atomically
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    write_atomically(sys.argv[1], sys.argv[2] * 100_000, durable=False)
"""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(target), letter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for letter in "ab"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    contents = set()
    while any(writer.poll() is None for writer in writers):
        if target.exists():
            contents.add(target.read_text())
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert {"a" * 100_000, "b" * 100_000} >= contents != set()
    assert list(tmp_path.iterdir()) == [target]


def test_permissions_are_those_of_the_old_file_or_of_a_new_one(tmp_path: Path) -> None:
    def permissions(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    secret, plain, usual = tmp_path / "secret", tmp_path / "plain", tmp_path / "usual"
    secret.touch(mode=0o600)
    write_atomically(secret, "x")
    assert permissions(secret) == 0o600
    usual.write_text("")
    write_atomically(plain, "x")
    assert permissions(plain) == permissions(usual)


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link"
    elsewhere.write_text("old")
    link.symlink_to(elsewhere)
    write_atomically(link, "new")
    assert (elsewhere.read_text(), link.read_text(), link.is_symlink()) == ("old", "new", False)


def test_a_device_is_never_replaced() -> None:
    with pytest.raises(ValueError, match="/dev/null is a device, which cannot be replaced by a file"):
        write_atomically("/dev/null", "x")
    assert Path("/dev/null").is_char_device()
