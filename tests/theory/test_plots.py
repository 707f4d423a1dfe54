"""The plots show what the theory computes, and are labelled."""

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import aimopt
from aimopt import theory
from aimopt.theory import plots
from aimopt.theory.trajectories import GEOMETRIES, PROBLEMS, Trajectories, combinations, trajectories

P = [torch.zeros(2, 2, requires_grad=True)]


def line_data(axes: Any, label: str) -> tuple[np.ndarray, np.ndarray]:
    (line,) = [line for line in axes.get_lines() if line.get_label().startswith(label)]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def assert_explained(figure: Any) -> None:
    """A title, and on every panel with axes a title or label for each."""
    assert len(figure.get_suptitle()) > 10
    for ax in figure.axes:
        if ax.axison and ax.get_label() != "<colorbar>":
            assert len(ax.get_xlabel()) > 1
            assert len(ax.get_ylabel()) > 1


def test_the_response_plot_shows_the_response(tmp_path: Path) -> None:
    sources: dict[str, Any] = {"RADAR": aimopt.RADAR(P), "Adan": aimopt.Adan(P)}
    figure = plots.response(sources, steps=20)
    assert_explained(figure)
    gain, phase, delay, weight, jump, first = figure.axes
    for name, source in sources.items():
        predicted = theory.response(source)
        cycles, magnitude = line_data(gain, name)
        np.testing.assert_allclose(magnitude, np.abs(predicted.at_frequency(2 * np.pi * cycles)))
        assert cycles[-1] == 0.5
        np.testing.assert_allclose(line_data(delay, name)[1], predicted.group_delay(2 * np.pi * cycles))
        np.testing.assert_allclose(
            np.exp(1j * np.radians(line_data(phase, name)[1])) * magnitude, predicted.at_frequency(2 * np.pi * cycles)
        )
        np.testing.assert_allclose(line_data(weight, name)[1], predicted.impulse(20))
        np.testing.assert_allclose(line_data(jump, name)[1], predicted.step(20))
        np.testing.assert_allclose(line_data(first, name)[1], predicted.first_steps(20).gain)
    legend = weight.get_legend()
    assert legend is not None
    assert "RADAR: Σh² = 0.076, ν = 0.88" in [text.get_text() for text in legend.get_texts()]
    with Image.open(plots.save(figure, tmp_path / "response.png")) as saved:
        assert saved.size == (1584, 814)


def test_the_red_line_of_the_stability_map_is_the_edge() -> None:
    figure = plots.stability(beta1=0.9, ell_ratio=0.01)
    assert_explained(figure)
    ax = figure.axes[0]
    (red,) = [
        c
        for c in ax.collections
        if hasattr(c, "get_edgecolor") and len(c.get_edgecolor()) and np.allclose(c.get_edgecolor()[0], _rgba())
    ]
    vertices = np.concatenate([path.vertices for path in red.get_paths()])
    for gamma, h in vertices[:: max(len(vertices) // 15, 1)]:
        analysis = theory.quadratic(
            aimopt.GradientDifference(0.9, float(max(gamma, 0))), aimopt.FixedPoint(ell_ratio=0.01)
        )
        assert analysis.largest_stable == pytest.approx(h, rel=0.05)
    assert plots.stability(beta1=0.0).axes  # without an average there is no ν to show


def _rgba() -> Any:
    from matplotlib.colors import to_rgba

    return to_rgba(plots.VERMILION)


@pytest.mark.parametrize(("lr", "sigma2"), [(5e-3, 0.1), (5e-3, 0.0)])
def test_the_certificate_plot_shows_the_bound(lr: float, sigma2: float) -> None:
    c = theory.certificate(L=2.0, sigma2=sigma2, nu_min=0.5, nu_max=1.0, lr=lr, ell=lr / 100)
    figure = plots.certificate(c, V0=3.0, batch=16, lowest=1.0)
    assert_explained(figure)
    rates, bound = figure.axes
    T, most = line_data(bound, "the bound")
    for steps, value in list(zip(T, most, strict=True))[::10]:
        if steps < 1e4:
            assert value == pytest.approx(c.bound(int(steps), 3.0, 16, lowest=1.0))
    gammas, limits = line_data(rates, "largest certified")
    assert limits[50] == pytest.approx(
        theory.largest_stable_lr(L=2.0, nu_min=0.5, nu_max=1.0, ell_ratio=0.01, gamma=gammas[50])
    )
    x, y = line_data(rates, "this setting")
    assert (x[0], y[0]) == (c.gamma, c.lr)


def test_the_plot_gives_the_reason_if_there_is_no_certificate() -> None:
    c = theory.certificate(L=2.0, sigma2=0.1, nu_min=0.5, nu_max=1.0, lr=1.0)
    text = " ".join(label.get_text() for label in plots.certificate(c).axes[1].texts)
    assert "no certificate here" in text
    assert "d2 > 0 fails" in text


@pytest.fixture(scope="module")
def run() -> Trajectories:
    return trajectories(PROBLEMS["valley"], steps=40, rates=(0.01, 0.1))


def test_the_paths_are_those_of_real_optimizers(run: Trajectories) -> None:
    """Every cell of the table, and each path again by hand, step by step."""
    assert len(run.by_combination) == len(combinations()) == 13
    path = run.by_combination["weighted", "RADAR"]
    theta = torch.tensor([[-2.0, -1.2]], dtype=torch.float64, requires_grad=True)
    radar = aimopt.RADAR([theta], path.lr, (0.9, 0.99))
    noise = 2.0 * torch.randn(40, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for k, step_noise in enumerate(noise):
        np.testing.assert_allclose(path.points[k], theta.detach()[0].numpy(), atol=1e-12)
        x, y = theta.detach()[0]
        slope = torch.stack([0.3 * (x + y) - 15 * (y - x), 0.3 * (x + y) + 15 * (y - x)])
        theta.grad = slope[None] + step_noise
        radar.step()
    assert path.losses[0] == pytest.approx(PROBLEMS["valley"].function(-2.0, -1.2))
    assert str(run).count("\n") == 14


def test_the_best_learning_rate_is_kept(run: Trajectories) -> None:
    slow, fast = (trajectories(PROBLEMS["valley"], 40, (lr,)).by_combination for lr in (0.01, 0.1))
    for cell, best in run.by_combination.items():
        assert best.losses[-4:].mean() == min(slow[cell].losses[-4:].mean(), fast[cell].losses[-4:].mean())
    for problem in PROBLEMS.values():
        assert problem.function(*problem.minimum) == pytest.approx(0, abs=1e-12)
        assert problem.function(*problem.start) > 1


def test_the_plot_of_the_paths(run: Trajectories) -> None:
    figure = plots.paths(run, last_step=10)
    assert_explained(figure)
    assert "step  10 of 40" in figure.get_suptitle()
    panels = dict(zip(GEOMETRIES, figure.axes, strict=True))
    for (geometry, correction), path in run.by_combination.items():
        x, y = line_data(panels[geometry], correction)
        np.testing.assert_allclose(np.column_stack([x, y]), path.points[:11])
    whole = plots.paths(run)
    assert len(line_data(whole.axes[0], "direct")[0]) == 41


def test_the_animation_grows(run: Trajectories, tmp_path: Path) -> None:
    path = plots.animate(run, tmp_path / "valley.gif", frames=4)
    with Image.open(path) as gif:
        frames = []
        for index in range(4):
            gif.seek(index)
            frames.append(np.asarray(gif.convert("RGB")).astype(int))
        assert getattr(gif, "n_frames", 1) == 4
    assert path.stat().st_size < 400_000
    changed = [np.abs(after - before).sum(-1).astype(bool).sum() for before, after in itertools.pairwise(frames)]
    assert min(changed) > 100
    assert max(changed) < frames[0].shape[0] * frames[0].shape[1] / 4  # the background stands still


def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(
    run: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file survives a full disk, which is where a half-written picture would come from."""

    def full_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    figure = plots.paths(run)
    writers: dict[str, Callable[[Path], Path]] = {
        "plot.png": lambda path: plots.save(figure, path),
        "runs.gif": lambda path: plots.animate(run, path, frames=2),
    }
    for name, write in writers.items():
        path = tmp_path / name
        path.write_text("old")
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", full_disk)
            with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
                write(path)
        assert path.read_text() == "old"
        write(path)
        assert path.stat().st_size > 1000
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_without_an_ending_is_refused(run: Trajectories, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'.*plot' has no ending that names a format; add \.png, \.pdf or \.svg"):
        plots.save(plots.paths(run), tmp_path / "plot")


def test_zero_steps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"steps must be at least 1 .* got steps=0"):
        trajectories(PROBLEMS["beale"], steps=0)


def test_help_needs_no_scipy_and_theory_no_matplotlib() -> None:
    """In a new process: the commands are listed, and a missing package is named when it is needed."""
    code = """
import sys
sys.modules["scipy"] = sys.modules["matplotlib"] = None
from aimopt import EMA, theory
from aimopt.cli import main
try:
    theory.response
except ImportError as error:
    print(error)
print(main(["response", "radar"]))
del sys.modules["scipy"]
from aimopt.theory import plots
print(theory.response(EMA(0.9)).nu)
try:
    plots.stability()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "aimopt.theory needs scipy: pip install 'aimopt[theory]'",
        "2",
        "1.0",
        "plots need matplotlib: pip install 'aimopt[theory]'",
    ]
    assert done.stderr == "aimopt response needs scipy: pip install 'aimopt[theory]'\n"
