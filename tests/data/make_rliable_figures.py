"""Write rliable.json: what rliable 1.2.0 gives for fixed scores, so that the tests do not need rliable.

    pip install rliable==1.2.0
    python tests/data/make_rliable_figures.py

rliable needs pandas, seaborn, arch and statsmodels, about 150 MB, and is used for these twenty numbers alone.
"""

import json
from importlib import metadata
from pathlib import Path

import numpy as np

SHAPES = [(1, 1), (3, 1), (5, 3), (10, 2), (4, 6)]  # runs, tasks


def figures() -> list[dict[str, object]]:
    """One entry per shape: two score matrices, and what rliable gives for them."""
    from rliable import metrics  # type: ignore[import-not-found, import-untyped, unused-ignore]

    entries = []
    for shape in SHAPES:
        # Whole numbers, so that some of them are equal.
        x, y = (np.random.default_rng(seed).integers(-5, 5, shape).astype(float) for seed in (0, 1))
        entries.append({
            "x": x.tolist(),
            "y": y.tolist(),
            "interquartile_mean": float(metrics.aggregate_iqm(x)),
            "probability_of_improvement": float(metrics.probability_of_improvement(x, y)),
        })  # fmt: skip
    return entries


if __name__ == "__main__":
    content = {"rliable": metadata.version("rliable"), "figures": figures()}
    Path(__file__).with_name("rliable.json").write_text(json.dumps(content) + "\n")
