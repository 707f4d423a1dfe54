"""Claims: only one of many processes works in a folder."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aimopt.lab.results import claims
from aimopt.lab.results.claims import Claim

TAKE = """
import sys
from pathlib import Path
from aimopt.lab.results.claims import Claim
folder = Path(sys.argv[1])
sys.stdin.readline()
claim = Claim.take(folder)
print("taken" if claim else "refused", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim whose date is doubtful is watched for a moment only."""
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.05)


def process(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", TAKE, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def answers(processes: "list[subprocess.Popen[str]]") -> list[str]:
    for one in processes:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return [one.stdout.readline().strip() for one in processes if one.stdout]


def end(one: "subprocess.Popen[str]") -> None:
    one.kill()
    one.communicate()


def test_one_of_several_concurrent_processes_gets_the_claim(tmp_path: Path) -> None:
    processes = [process(tmp_path) for _ in range(4)]
    assert sorted(answers(processes)) == ["refused", "refused", "refused", "taken"]
    for one in processes:
        end(one)


def test_exactly_one_process_takes_over_from_a_dead_one(tmp_path: Path) -> None:
    first = process(tmp_path)
    assert answers([first]) == ["taken"]
    assert Claim.take(tmp_path) is None
    end(first)
    processes = [process(tmp_path) for _ in range(3)]
    assert sorted(answers(processes)) == ["refused", "refused", "taken"]
    for one in processes:
        end(one)


def write_foreign_claim(folder: Path, silent: float) -> None:
    """A claim of another machine, silent for so long."""
    claim = folder / "claim.1"
    claim.write_text(json.dumps({"token": "theirs", "host": "another machine", "pid": 1}))
    now = claim.stat().st_mtime
    os.utime(claim, (now - silent, now - silent))


def stop_heartbeat(claim: Claim) -> None:
    """As a process that is stopped, or cut off from the disk."""
    claim.released.set()
    claim.heartbeat.join()


def test_a_claim_of_another_machine_is_stale_only_after_a_long_time(tmp_path: Path) -> None:
    write_foreign_claim(tmp_path, claims.STALE_SECONDS - 5)
    assert Claim.take(tmp_path) is None
    write_foreign_claim(tmp_path, claims.STALE_SECONDS + 5)
    claim = Claim.take(tmp_path)
    assert claim is not None
    assert claim.holds()
    claim.release()


def test_a_process_that_lost_its_claim_notices_it(tmp_path: Path) -> None:
    first = Claim.take(tmp_path)
    assert first is not None
    stop_heartbeat(first)
    write_foreign_claim(tmp_path, claims.STALE_SECONDS + 5)  # as it looks from a machine that cannot see this process
    second = Claim.take(tmp_path)
    assert second is not None
    assert not first.holds()
    assert second.holds()
    first.release()
    second.release()


def test_a_released_folder_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        claim = Claim.take(tmp_path)
        assert claim is not None
        claim.release()
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_claim_is_valid(tmp_path: Path) -> None:
    (tmp_path / "claim.1").touch()
    assert Claim.take(tmp_path) is None


def test_a_lost_claim_does_not_become_valid_again_when_the_other_is_released(tmp_path: Path) -> None:
    first = Claim.take(tmp_path)
    assert first is not None
    stop_heartbeat(first)
    write_foreign_claim(tmp_path, claims.STALE_SECONDS + 5)
    second = Claim.take(tmp_path)
    assert second is not None
    second.release()
    assert not first.holds()
    first.release()


def test_on_a_full_disk_the_claim_of_another_machine_stays_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_foreign_claim(tmp_path, claims.STALE_SECONDS + 5)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "touch", full)
    assert claims.is_claimed(tmp_path)
    assert Claim.take(tmp_path) is None


@pytest.mark.parametrize("ahead", [60.0, 1e6])
def test_a_claim_from_the_future_does_not_block(ahead: float, tmp_path: Path) -> None:
    write_foreign_claim(tmp_path, -ahead)
    claim = Claim.take(tmp_path)
    assert claim is not None
    assert claim.holds()
    claim.release()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0, 1e6])
def test_a_living_process_keeps_its_claim_when_the_clock_jumps(jump: float, tmp_path: Path) -> None:
    """As others see it: the date of its claim is far off, until it gives its next sign of life."""
    claim = Claim.take(tmp_path)
    assert claim is not None
    path = tmp_path / "claim.1"
    now = path.stat().st_mtime
    os.utime(path, (now - jump, now - jump))
    assert Claim.take(tmp_path) is None
    assert claim.holds()
    claim.release()


@pytest.mark.parametrize(
    "name", ["claim.1000000000000", "claim." + "9" * 240, "claim.1.7", "claim.٣", "claim.01", "claim.x", "claim."]
)
def test_a_file_that_only_looks_like_a_claim_neither_blocks_nor_is_deleted(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.touch()
    claim = Claim.take(tmp_path)
    assert claim is not None
    claim.release()
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_place_of_a_claim_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "claim.7").mkdir()
    os.utime(tmp_path / "claim.7", (1.0, 1.0))
    claim = Claim.take(tmp_path)
    assert claim is not None
    assert claim.holds()
    claim.release()


def test_the_last_possible_claim_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / f"claim.{claims.LAST_NUMBER}"
    path.touch()
    os.utime(path, (1.0, 1.0))
    with pytest.raises(ValueError, match=r"claim\.999999999 cannot be used: no claim can follow it; delete it"):
        Claim.take(tmp_path)


@pytest.mark.parametrize("content", ["[]", "3", "null", '{"pid": "x"}', '{"token": 1}', "[" * 100_000, "\xff", ""])
def test_a_damaged_claim_blocks_only_as_long_as_it_is_fresh(content: str, tmp_path: Path) -> None:
    path = tmp_path / "claim.1"
    path.write_bytes(content.encode("latin-1"))
    assert claims.is_claimed(tmp_path)
    assert Claim.take(tmp_path) is None
    os.utime(path, (1.0, 1.0))
    claim = Claim.take(tmp_path)
    assert claim is not None
    claim.release()
