"""Spreads, paired differences and verdicts, compared with scipy, with values computed by hand and with simulations."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from aimopt.lab.stats.paired import (
    RANDOM_FLIPS,
    Difference,
    differences_on_shared_seeds,
    holm,
    paired_differences,
    sign_flip_p,
    spread,
)
from aimopt.lab.stats.values import Better

INF, NAN = math.inf, math.nan
FLIPPED: dict[Better, Better] = {"lower": "higher", "higher": "lower"}
values = st.floats(-1e300, 1e300) | st.sampled_from([INF, -INF, NAN])
tables = st.integers(1, 7).flatmap(lambda n: st.tuples(*[st.lists(values, min_size=n, max_size=n)] * 3))


def sample(seeds: int, seed: int = 0) -> tuple[list[float], list[float]]:
    """A contender and a reference that share much of their noise."""
    shared, own = np.random.default_rng(seed).normal(size=(2, seeds))
    return (shared + 0.5 * own - 0.3).tolist(), shared.tolist()


def difference(own: Sequence[float], other: Sequence[float], better: Better) -> Difference:
    """A table with one contender."""
    return paired_differences({"own": own, "reference": other}, "reference", better)["own"]


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_spread_is_the_t_interval(seeds: int) -> None:
    own, _ = sample(seeds)
    got = spread(own)
    interval = scipy_stats.t.interval(0.95, seeds - 1, np.mean(own), scipy_stats.sem(own))
    np.testing.assert_allclose(got[:4], [np.mean(own), np.std(own, ddof=1), *interval], rtol=1e-12)
    assert (got.values, got.diverged) == (tuple(own), 0)


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize(("better", "worst"), [("lower", INF), ("higher", -INF)])
def test_a_diverged_seed_is_the_worst_value(bad: float, better: Better, worst: float) -> None:
    got = spread([0.1, bad, 0.2], better)
    assert (got.mean, got.diverged, got.values) == (worst, 1, (0.1, worst, 0.2))
    assert np.isnan([got.std, got.low, got.high]).all()


def test_a_loss_of_zero_is_not_shown_with_a_sign() -> None:
    zero = spread([0.0, 0.0], "lower")
    assert [math.copysign(1, value) for value in (zero.mean, zero.low, zero.high, *zero.values)] == [1.0] * 5


def test_one_seed_has_no_spread() -> None:
    got = spread([0.3])
    assert got.mean == 0.3
    assert np.isnan([got.std, got.low, got.high]).all()


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_squares_neither_overflow_nor_vanish(size: float) -> None:
    got = spread([size, 2 * size, 3 * size])
    assert (got.mean, got.std) == pytest.approx((2 * size, size))
    assert difference([size, 1.1 * size, 1.2 * size], [3 * size, 2 * size, 4 * size], "lower").t_p == pytest.approx(
        scipy_stats.ttest_rel([1, 1.1, 1.2], [3, 2, 4]).pvalue
    )


@pytest.mark.parametrize("seeds", [2, 5, 10])
def test_paired_t(seeds: int) -> None:
    own, other = sample(seeds)
    got, expected = difference(own, other, "higher"), scipy_stats.ttest_rel(own, other)
    assert got.t_p == pytest.approx(expected.pvalue)
    assert (got.low, got.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert got.differences == pytest.approx(np.subtract(own, other))


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_effect_is_unbiased(seeds: int) -> None:
    """t = √n·d_z is noncentral t, whose mean is √n·δ over the correction."""
    own, other = sample(seeds)
    gains = np.subtract(own, other)
    correction = math.sqrt(seeds) / scipy_stats.nct.mean(seeds - 1, math.sqrt(seeds))
    assert difference(own, other, "higher").effect == pytest.approx(gains.mean() / gains.std(ddof=1) * correction)


@pytest.mark.parametrize("seeds", [2, 5, 9, 12])
def test_all_sign_flips_are_tried(seeds: int) -> None:
    gains = np.subtract(*sample(seeds, seed=seeds))
    expected = scipy_stats.permutation_test(
        (gains,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p(gains) == pytest.approx(expected.pvalue)


def test_sign_flips_that_tie_in_exact_arithmetic_tie() -> None:
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1  # the mean is 0, but not in binary
    assert sign_flip_p([0.3, 0.1, 0.2, 0.3, -0.1]) == 6 / 32  # by hand: the sums ±0.8 twice each way, ±1 once


def test_many_seeds_use_random_flips() -> None:
    """Sixteen seeds are exact; a seventeenth with no difference changes the method and not the p."""
    gains = np.random.default_rng(3).normal(0.4, size=16)
    assert sign_flip_p([*gains, 0.0]) == pytest.approx(sign_flip_p(gains), abs=0.003)
    assert sign_flip_p([*gains, 0.1]) == sign_flip_p([0.1, *gains[::-1]])
    assert sign_flip_p([1.0] * 40) == 1 / 100_001  # the observed one counts: never zero


def test_random_flips_are_the_same_for_every_contender() -> None:
    gains = np.random.default_rng(1).normal(0.3, 1.0, 20)
    generator, sizes = np.random.default_rng(0), np.sort(np.abs(gains))
    totals = sum(size * generator.choice((-1.0, 1.0), RANDOM_FLIPS) for size in sizes)
    p = (1 + (np.abs(totals) >= abs(gains.sum())).sum()) / (1 + RANDOM_FLIPS)
    assert [sign_flip_p(gains), sign_flip_p(-2 * gains), sign_flip_p(gains)] == [p] * 3


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1, 1]
    assert holm([]) == []


def test_holm_counts_a_contender_without_a_p() -> None:
    assert holm([0.01, NAN, 0.02]) == pytest.approx([0.03, NAN, 0.04], nan_ok=True)


def test_compare_correct_for_all_contenders() -> None:
    generator = np.random.default_rng(0)
    table = {name: generator.normal(mean, size=5).tolist() for name, mean in dict(a=0, b=1, c=2, d=3).items()}
    got = paired_differences(table, "b", "lower")
    alone = {name: difference(table[name], table["b"], "lower") for name in "acd"}
    assert list(got) == ["a", "c", "d"]
    assert [d.p for d in got.values()] == [d.p for d in alone.values()]
    assert [d.holm_p for d in got.values()] == holm([d.p for d in alone.values()])
    assert [d.holm_t_p for d in got.values()] == holm([d.t_p for d in alone.values()])


def test_identical_contenders_are_not_in_the_family() -> None:
    """Adam without weight decay is AdamW, and a sweep contains its own defaults: nothing is tested there."""
    generator = np.random.default_rng(1)
    table = {name: generator.normal(mean, size=5).tolist() for name, mean in dict(a=0, b=1, c=2).items()}
    got = paired_differences({**table, "same": table["b"], "again": [*table["b"]]}, "b", "lower")
    without = paired_differences(table, "b", "lower")
    assert {name: got[name] for name in without} == without
    assert [*got] == ["a", "c", "same", "again"]
    for name in ("same", "again"):
        assert (got[name].verdict, got[name].p, got[name].holm_p, got[name].holm_t_p) == ("identical", 1, 1, 1)


def test_a_contender_without_a_result_is_still_in_the_family() -> None:
    by_seed = {"a": {0: 1.0, 1: 1.1, 2: 1.3}, "b": {0: 2.0, 1: 2.2, 2: 2.1}, "same": {0: 2.0}, "late": {}}
    got = differences_on_shared_seeds(by_seed, "b", "lower")
    assert got["late"] is None
    assert got["a"] is not None
    assert got["a"].holm_t_p == pytest.approx(2 * got["a"].t_p)


def test_tables_with_identical_contenders_have_few_false_verdicts() -> None:
    """Two of five contenders equal the reference: the family-wise error of the others stays at most 5 %."""
    generator = np.random.default_rng(0)
    tables = [paired_differences(null_table(generator), "reference", "lower") for _ in range(400)]
    false = sum(any(d.verdict in ("better", "worse") for d in table.values()) for table in tables)
    assert false <= scipy_stats.binom.ppf(0.999, 400, 0.05)


def null_table(generator: np.random.Generator) -> dict[str, list[float]]:
    reference, *others = generator.normal(size=(4, 6)).tolist()
    return {"reference": reference, "same": reference, "again": reference, **dict(zip("abc", others, strict=True))}


NOISE = [0.010, -0.012, 0.003, 0.008, -0.005]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([1 + x for x in NOISE], "better"),
        ([-1 + x for x in NOISE], "worse"),
        (NOISE, "cannot tell with 5 seeds"),
        ([0.5] * 5, "better"),
        ([0.0] * 5, "identical"),
        ([0.0] * 4 + [0.1], "cannot tell with 5 seeds"),
        ([1.0], "cannot tell: too few seeds (1 of at least 5)"),
        ([0.0] * 4, "cannot tell: too few seeds (4 of at least 5)"),
        # p = 0.0003 by t, but two seeds are two numbers
        ([1.0, 1.001], "cannot tell: too few seeds (2 of at least 5)"),
        # significant by t, but one seed of five is against it
        ([1.0, 1.0, 1.0, 1.0, -0.01], "cannot tell with 5 seeds"),
    ],
)
def test_verdict(gains: list[float], verdict: str) -> None:
    assert difference(gains, [0.0] * len(gains), "higher").verdict == verdict


def test_the_last_case_is_significant_by_t() -> None:
    assert difference([1.0, 1.0, 1.0, 1.0, -0.01], [0.0] * 5, "higher").holm_t_p < 0.05


@pytest.mark.parametrize(
    ("contender", "reference", "verdict"),
    [
        ([INF] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], "worse"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], [NAN] * 5, "better"),
        ([INF] * 4, [1.0] * 4, "cannot tell: too few seeds (4 of at least 5)"),
        ([INF, INF, INF, INF, 9.0], [1.0] * 5, "cannot tell with 5 seeds"),
        ([INF, 2.0, 2.0, 2.0, 2.0], [1.0] * 5, "cannot tell with 5 seeds"),
        ([INF, 2.0, 2.0, 2.0, 2.0, 2.0], [1.0] * 6, "worse"),
        ([INF, 2.0, 2.0, 2.0, 0.9], [1.0] * 5, "cannot tell with 5 seeds"),
        ([INF, 2.0, 2.0, 2.0, 2.0], [NAN, 1.0, 1.0, 1.0, 1.0], "cannot tell with 5 seeds"),
        ([INF, 2.0, 2.0, 2.0, 2.0, 2.0], [NAN, 1.0, 1.0, 1.0, 1.0, 1.0], "cannot tell with 6 seeds"),
        ([INF] * 5, [INF] * 5, "cannot tell with 5 seeds"),
    ],
)
def test_verdict_with_diverged_seeds(contender: list[float], reference: list[float], verdict: str) -> None:
    got = difference(contender, reference, "lower")
    assert got.verdict == verdict
    assert np.isnan([got.low, got.high, got.effect, got.t_p]).all()


def test_a_diverged_seed_is_an_infinite_difference_and_its_p_uses_the_signs() -> None:
    got = difference([INF, INF, 3.0, 4.0, 2.0], [1.0, NAN, 1.0, 1.0, 1.0], "lower")
    assert got.differences == (-INF, 0.0, -2.0, -3.0, -1.0)
    assert (got.mean, got.p) == (-INF, scipy_stats.binomtest(0, 4).pvalue)


@given(tables, st.sampled_from(["lower", "higher"]), st.integers(0, 100))
@settings(deadline=None)
def test_neither_orientation_nor_the_order_of_seeds_matters(
    table: tuple[list[float], ...], better: Better, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(table[0]))
    own = dict(zip("abc", table, strict=True))
    mirrored = {name: [-x for x in own[name]] for name in own}
    shuffled = {name: [own[name][i] for i in order] for name in own}
    got = paired_differences(own, "a", better)
    assert {n: (d.verdict, d.p) for n, d in paired_differences(mirrored, "a", FLIPPED[better]).items()} == {
        n: (d.verdict, d.p) for n, d in got.items()
    }
    for name, d in paired_differences(shuffled, "a", better).items():
        assert d.p == got[name].p
        assert d.t_p == pytest.approx(got[name].t_p, abs=1e-6, nan_ok=True)


@given(tables, st.sampled_from(["lower", "higher"]))
@settings(deadline=None)
def test_fewer_than_five_seeds_give_no_verdict_whatever_p_is(table: tuple[list[float], ...], better: Better) -> None:
    for d in paired_differences(dict(zip("abc", table, strict=True)), "a", better).values():
        few = f"cannot tell: too few seeds ({len(table[0])} of at least 5)"
        assert (d.verdict == few) == d.too_few_seeds == (len(table[0]) < 5)


@given(tables)
@settings(deadline=None)
def test_swapping_contender_and_reference_swaps_the_verdict(table: tuple[list[float], ...]) -> None:
    swapped = {"better": "worse", "worse": "better"}
    one, other = difference(table[0], table[1], "lower"), difference(table[1], table[0], "lower")
    assert other.verdict == swapped.get(one.verdict, one.verdict)
    assert other.effect == pytest.approx(-one.effect, nan_ok=True)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=8), st.floats(1e-100, 1e100))
@settings(deadline=None)
def test_p_does_not_depend_on_the_scale(gains: list[int], scale: float) -> None:
    assert sign_flip_p(np.multiply(gains, scale)) == sign_flip_p(gains)


@pytest.mark.parametrize("seeds", [5, 7, 10])
@pytest.mark.parametrize("noise", ["normal", "lognormal", "standard_cauchy"])
def test_contenders_that_do_not_differ_rarely_get_a_verdict(noise: str, seeds: int) -> None:
    """Of tables with seven contenders and no difference, at most one in twenty has any verdict."""
    draw, trials, names = getattr(np.random.default_rng(0), noise), 300, "abcdefgh"
    tables = [dict(zip(names, rows, strict=True)) for rows in draw(size=(trials, len(names), seeds))]
    verdicts = [
        {d.verdict for d in paired_differences(table, "a", "lower").values()} & {"better", "worse"} for table in tables
    ]
    wrong = sum(map(bool, verdicts))
    assert wrong <= scipy_stats.binom.ppf(0.999, trials, 0.05)


@pytest.mark.parametrize("seeds", [5, 7, 10])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_contenders_that_diverge_equally_often_rarely_get_a_verdict(share: float, seeds: int) -> None:
    """The same of tables in which runs diverge."""
    generator, trials = np.random.default_rng(0), 200
    runs = np.where(generator.random((trials, 8, seeds)) < share, INF, generator.normal(size=(trials, 8, seeds)))
    tables = [dict(zip("abcdefgh", rows.tolist(), strict=True)) for rows in runs]
    verdicts = [
        {d.verdict for d in paired_differences(table, "a", "lower").values()} & {"better", "worse"} for table in tables
    ]
    assert sum(map(bool, verdicts)) <= scipy_stats.binom.ppf(0.999, trials, 0.05)


def test_a_large_difference_gets_a_verdict() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        table = {name: generator.normal(-10 * (name == "far"), size=5).tolist() for name in ["far", *"abcdefg"]}
        assert paired_differences(table, "a", "lower")["far"].verdict == "better"


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"b has 1 values and the reference a has 2.*same seeds"):
        paired_differences({"a": [1, 2], "b": [1]}, "a", "lower")
    with pytest.raises(ValueError, match=r"reference 'c' is none of the contenders \['a'\]"):
        paired_differences({"a": [1]}, "c", "lower")
    with pytest.raises(ValueError, match="'lower' for losses or 'higher'"):
        spread([1.0], "smaller")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no value"):
        spread([])
    with pytest.raises(ValueError, match="no seed"):
        paired_differences({"a": [], "b": []}, "a", "lower")
