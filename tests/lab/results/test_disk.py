"""A disk that is full or read-only, and a store that is deleted, are told in a sentence that names the path."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimopt.cli import main
from aimopt.lab.execution.runner import train_run
from aimopt.lab.results.store import Store, StoreGone
from engine_runs import user_run, work_in
from short_studies import SHORT, short_run, short_study

SETTINGS = [f"--set={name}={value}" for name, value in SHORT.items()]
QUICK = ["--workers=1", "--scale=demo", "--grid", "1", "--seeds", "0", *SETTINGS]
RUN = ["run", "digits", "--scale=demo", "--seed=3", *SETTINGS]
COMPARE = ["compare", "digits", "--optimizers", "RADAR", "AdamW", *QUICK]
SWEEP = ["sweep", "digits", "--over=gamma=0", *QUICK]
WRITING = (RUN, COMPARE, SWEEP, ["report"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


def fill(store: Store) -> None:
    """A store with a study and a run of it."""
    store.save_study(short_study(seeds=(0,), grid=(1.0,)))
    train_run(short_run(), store)


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of memory in a folder."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this process may mount nothing")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """As on a full disk, a file can be made but not written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def expect(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"aimopt {arguments[0]}: results")
    assert said.count("\n") == 1
    assert message in said


def test_an_error_names_the_file_that_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(Store("results"))
    before = sorted(Path("results").rglob("*"))
    with no_file_larger_than(0):
        for arguments in WRITING:
            expect(arguments, ": File too large", capsys)
        assert main(["status"]) == 0
    assert "1 finished" in capsys.readouterr().out
    assert sorted(path for path in Path("results").rglob("*") if not path.is_dir()) == [
        path for path in before if not path.is_dir()
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux does")
def test_a_full_and_a_read_only_disk_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(folder / "results", "size=128k"):
        fill(Store("results"))
        (Store("results").folder(short_run()) / "claim.1").write_text("")
        with contextlib.suppress(OSError), open("results/ballast", "wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
        for arguments in WRITING:
            expect(arguments, ": No space left on device; free some disk space, and give the command again", capsys)
        assert main(["status"]) == 0
        Path("results/ballast").unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(folder / "results")], check=True)
        for arguments in WRITING:
            expect(arguments, ": Read-only file system; choose a folder that can be written to", capsys)
        assert Store("results").is_claimed(short_run())  # nobody could say otherwise
        assert main(["status"]) == 0


def test_a_store_below_a_file_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").write_text("")
    for arguments in (RUN, COMPARE, SWEEP):
        with pytest.raises(SystemExit, match="2"):
            main([*arguments, "--store=results/below"])
        assert "results' is a file, but a folder is needed; give another name" in capsys.readouterr().err
    with pytest.raises(NotADirectoryError, match="results/below"):
        Store("results/below").create()


def test_a_store_that_is_deleted_during_a_run_ends_it_and_is_not_created_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user_run(folder)

    def delete() -> None:
        while not Path("stepping").exists():
            time.sleep(0.01)
        while Path("results").exists():
            shutil.rmtree("results", ignore_errors=True)

    deleting = threading.Thread(target=delete)
    deleting.start()
    # Half an hour: that the command ends at all says that the run was ended.
    long = ["--set=steps=100000", "--set=log_every=1", "--workers=1", "--checkpoint-seconds=0.01"]
    assert main(["run", "own.py:Points", "--optimizer=own.py:Slow", *long]) == 2
    deleting.join()
    said = capsys.readouterr().err
    assert said.startswith("aimopt run: the store results is gone: it was deleted or moved while it was in use")
    assert "Traceback" not in said
    assert not os.path.exists("results")


def test_only_a_store_that_must_exist_is_not_created_again(tmp_path: Path) -> None:
    config, store = short_run(), Store(tmp_path / "results")
    for _ in range(2):
        writer = store.claim_run(config)
        assert writer is not None
        writer.release()
        shutil.rmtree(store.root)
    store.create()
    shutil.rmtree(store.root)
    with pytest.raises(StoreGone, match="is gone"):
        store.claim_run(config)
    with pytest.raises(StoreGone, match="is gone"):
        store.check_exists()
    assert not store.root.exists()
