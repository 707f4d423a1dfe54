"""What a report says about several tasks together."""

import dataclasses

import pytest

from aimopt.lab.analysis.across_tasks import AcrossTasks, across_tasks
from aimopt.lab.report.across import pooled, pooled_sentence, ranks
from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.pooled import PooledDifference
from trained_findings import findings

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share
DIFFERENCE = PooledDifference(
    tasks=("a", "b"), left_out=("c",), pairs=35, ahead=32, ties=1, mean=0.7, gain=Interval(0.025, 0.0147, 0.0349),
    p=3e-5, holm_p=2.1e-4,
)  # fmt: skip


def across(difference: PooledDifference = DIFFERENCE) -> AcrossTasks:
    found = across_tasks(findings()[:2])
    assert found is not None
    return dataclasses.replace(found, pooled={"AdamW": {"RADAR": difference}, "RADAR": {}})


@pytest.mark.parametrize(
    ("difference", "sentence"),
    [
        (DIFFERENCE, "Pooled over 35 pairs of task and seed, RADAR is ahead of AdamW on 32 (p < 0.001)."),
        (DIFFERENCE._replace(holm_p=0.01, mean=-0.2, ahead=7), "(p = 0.01)."),
        (DIFFERENCE._replace(holm_p=0.34, ahead=20), "on 20 (p = 0.34), which shows no difference."),
        (DIFFERENCE._replace(ties=35, ahead=0, p=1.0, holm_p=1.0), ""),
    ],
)
def test_the_sentence_names_the_pairs_and_p(difference: PooledDifference, sentence: str) -> None:
    said = pooled_sentence(across(difference), "RADAR", "AdamW")
    assert said.endswith(sentence)
    assert bool(said) == bool(sentence)


def test_no_pooled_test_no_sentence() -> None:
    assert pooled_sentence(None, "RADAR", "AdamW") == pooled_sentence(across(), "Lion", "AdamW") == ""


def test_the_table_of_pooled_tests() -> None:
    (table,) = pooled(across())
    (row,) = table.rows
    assert [cell.text for cell in row] == [
        "RADAR", "2", "32 of 35", "+2.5 % [1.5, 3.5]", "<0.001", "<0.001", "ahead",
    ]  # fmt: skip
    assert (row[1].below, row[2].below, row[-1].tone) == ("without c", "1 equal", "good")
    without_ratios = pooled(across(DIFFERENCE._replace(gain=None, holm_p=0.2)))[0].rows[0]
    assert (without_ratios[3].text, without_ratios[-1].text) == ("–", "cannot tell")


def test_ranks_have_intervals_and_name_what_is_left_out() -> None:
    found = across()
    table = ranks(dataclasses.replace(found, left_out_tasks=("Small, mini",)))
    known = found.rank_intervals["RADAR"]
    assert table.rows[0][1].below == f"[{known.low:.2f}, {known.high:.2f}]"
    assert "Lion" in table.note
    assert "few of the contenders: Small, mini." in table.note
