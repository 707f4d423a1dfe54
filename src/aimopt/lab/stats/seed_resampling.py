"""Means over seeds, and the same means in resamples of the seeds.

    observed, draws = resampled_means([{0: 0.31, 1: 0.29}, {0: 0.33, 1: 0.30}], "lower")
    draws[:, 0] - draws[:, 1]                 how the difference of the two means varies

A column is a contender, or one contender at one length. Columns share seeds, that is initial weights and the order of
the data, so a resample draws the same seeds for all of them. Columns may have different seeds. Seeds that the same
columns have are one stratum, and are resampled among themselves: every column keeps its number of seeds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from aimopt.lab.stats.values import Better, Floats, to_scores

REPETITIONS = 2000


def resampled_means(
    columns: Sequence[Mapping[int, float]],
    better: Better,
    repetitions: int = REPETITIONS,
    generator: np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """The mean score per column, and one row of such means per resample; −∞ if a diverged run is among the seeds."""
    seeds = list(dict.fromkeys(seed for by_seed in columns for seed in by_seed))
    known = np.array([[seed in by_seed for by_seed in columns] for seed in seeds])
    table = [[by_seed.get(seed, 0.0) for by_seed in columns] for seed in seeds]
    scores = np.where(known, to_scores(table, better), 0.0)
    counts = _resampled_counts(known, generator or np.random.default_rng(0), repetitions)
    return _means(np.ones((1, len(seeds))), scores, known)[0], _means(counts, scores, known)


def _resampled_counts(known: np.ndarray, generator: np.random.Generator, repetitions: int) -> Floats:
    """Per resample, how often each seed was drawn."""
    counts = np.zeros((repetitions, len(known)))
    for pattern in np.unique(known, axis=0):
        stratum = np.flatnonzero((known == pattern).all(1))
        chances = np.full(len(stratum), 1 / len(stratum))
        counts[:, stratum] = generator.multinomial(len(stratum), chances, size=repetitions)
    return counts


def _means(counts: Floats, scores: Floats, known: np.ndarray) -> Floats:
    diverged = np.isinf(scores)
    finite = np.where(diverged, 0.0, scores)
    scale = np.maximum(np.abs(finite).max(0), np.finfo(np.float64).tiny)  # 1e308 is finite, twice that is not
    means = scale * (counts @ (finite / scale) / (counts @ known))
    return np.where(counts @ diverged > 0, -np.inf, means)
