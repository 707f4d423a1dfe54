"""Plots of the theory, each a matplotlib figure with a title, labels and a legend.

    plots.response({"RADAR": …, "AdamW": …})         gain, delay, weights of past gradients, first steps
    plots.stability(beta1=0.9)                       where RADAR converges on a quadratic: ηλ × γ
    plots.certificate(c, V0=1.0, batch=32)           the certified learning rates, and the bound over the steps
    plots.paths(trajectories(PROBLEMS["beale"]))     the design space over a surface; `animate` writes it as a GIF

`save(figure, path)` writes a figure to a file, whole or not at all. Colours are those of `aimopt.palette`.
"""

import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aimopt import palette
from aimopt.atomic_files import write_atomically
from aimopt.messages.extras import install_command
from aimopt.parts.corrections import FixedPoint
from aimopt.parts.filters import GradientDifference
from aimopt.theory.frequency import response as response_of
from aimopt.theory.linear_step import Source
from aimopt.theory.lyapunov import Certificate, largest_stable_lr
from aimopt.theory.quadratics import quadratic
from aimopt.theory.trajectories import Trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERMILION, NAVY, TEAL, VIOLET, GOLD, SKY, INK, MUTED, GRID = (
    colour.light
    for colour in (
        palette.VERMILION,
        palette.NAVY,
        palette.TEAL,
        palette.VIOLET,
        palette.GOLD,
        palette.SKY,
        palette.INK,
        palette.MUTED,
        palette.GRID,
    )
)
COLOURS = (VERMILION, NAVY, TEAL, VIOLET, GOLD, INK, SKY)
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
CORRECTION_STYLES = {
    "direct": (NAVY, "--"),
    "fixed point": (VERMILION, "-"),
    "secant": (TEAL, "-."),
    "RADAR": (INK, "-"),
}


def new_figure(rows: int, columns: int, size: tuple[float, float], title: str) -> tuple["Figure", Any]:
    """A figure that needs no window, and its axes as an array."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {install_command('theory')}") from error
    figure = Figure(figsize=size, layout="constrained", dpi=110)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color=GRID, linewidth=0.8)
        ax.set_axisbelow(True)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    return figure, axes


def save(figure: "Figure", path: str | Path) -> Path:
    """Write a figure to a file; the ending of its name is the format, such as png, pdf or svg."""
    path = Path(path)
    if not path.suffix:
        raise ValueError(f"save: {str(path)!r} has no ending that names a format; add .png, .pdf or .svg")
    content = BytesIO()
    figure.savefig(content, format=path.suffix[1:].lower())
    write_atomically(path, content.getbuffer(), durable=False)
    return path


def response(sources: Mapping[str, Source], steps: int = 30) -> "Figure":
    """Top: a Bode plot with group delay. Bottom: the weights of past gradients, a jump and the first steps."""
    figure, axes = new_figure(2, 3, (14.4, 7.4), "What moves the parameter, as a filter of the gradient")
    gain, phase, delay, weight, jump, first = axes.flat
    cycles = np.geomspace(1e-3, 0.5, 400)
    step_numbers = np.arange(1, steps + 1)
    for i, (name, source) in enumerate(sources.items()):
        analysis = response_of(source)
        line = dict(color=COLOURS[i % len(COLOURS)], linestyle=DASHES[i % len(DASHES)], linewidth=2, label=name)
        values = analysis.at_frequency(2 * math.pi * cycles)
        gain.loglog(cycles, np.abs(values), **line)
        phase.semilogx(cycles, np.degrees(np.unwrap(np.angle(values))), **line)
        delay.semilogx(cycles, analysis.group_delay(2 * math.pi * cycles), **line)
        jump.plot(step_numbers, analysis.step(steps), marker=".", **line)
        first.plot(step_numbers, analysis.first_steps(steps).gain, marker=".", **line)
        nu = "" if analysis.nu is None else f", ν = {analysis.nu:.2f}"
        line["label"] = f"{name}: Σh² = {analysis.noise_gain:.3f}{nu}"
        weight.plot(step_numbers - 1, analysis.impulse(steps), marker=".", **line)
    for ax in (gain, phase, delay):
        ax.set_xlabel("frequency of the gradient (cycles per step)")
        ax.axvline(0.5, color=MUTED, linewidth=1)
        ax.set_xlim(9e-4, 0.75)
        note = dict(rotation=90, va="center", fontsize=8, color=MUTED, transform=ax.get_xaxis_transform())
        ax.text(0.53, 0.5, "the sign flips at every step", **note)
    gain.set(title="Gain: which changes pass through", ylabel="amplitude out / amplitude in")
    phase.set(title="Phase: how much of a cycle they lag", ylabel="degrees")
    delay.set(title="Group delay: how late they arrive", ylabel="steps")
    weight.set(title="Weight of past gradients", xlabel="age of the gradient (steps)", ylabel="weight h")
    jump.set(title="A gradient that jumps to 1 during a run", xlabel="steps since the jump", ylabel="direction")
    first.set(title="A gradient of 1 from the first step", xlabel="step", ylabel="direction, bias correction included")
    gain.legend(frameon=False)
    weight.legend(frameon=False)
    return figure


def stability(beta1: float = 0.9, ell_ratio: float = 0.01, mark: tuple[float, ...] = (0.01, 0.1)) -> "Figure":
    """The number of steps in which RADAR divides the error on a quadratic by ten, and where it diverges."""
    figure, axes = new_figure(1, 1, (8.6, 5.6), "Where RADAR converges on a quadratic ½λx², and how fast")
    from matplotlib.colors import LogNorm

    ax: Axes = axes[0, 0]
    # 144 points skip γ = β1, where the average cancels: a single column of other values would look like an error.
    gammas, h = np.linspace(0, 1.5 * max(beta1, 0.2), 144), np.geomspace(1e-2, 1e2, 401)
    radius = np.array(
        [quadratic(GradientDifference(beta1, g), FixedPoint(ell_ratio=ell_ratio)).spectral_radius(h) for g in gammas]
    ).T
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(radius < 1, math.log(10) / -np.log(radius), np.nan)
    mesh = ax.pcolormesh(gammas, h, steps, norm=LogNorm(2, 300), cmap="viridis_r", shading="nearest", rasterized=True)
    away_from_edge = np.where(radius < 0.95, steps, np.nan)  # near the edge the contours would lie too close
    contours = ax.contour(
        gammas,
        h,
        np.where(h[:, None] < 0.3, steps, away_from_edge),
        levels=[3, 5, 10, 20, 50, 100, 200],
        colors="white",
        linewidths=0.8,
    )
    ax.clabel(contours, fmt=lambda x: f"{x:.0f}", fontsize=8)
    ax.contourf(gammas, h, radius, levels=[1, np.inf], colors=palette.SHADE.light)
    ax.contour(gammas, h, radius, levels=[1], colors=VERMILION, linewidths=2.5)
    edge = quadratic(GradientDifference(beta1, 0.0), FixedPoint(ell_ratio=ell_ratio)).largest_stable
    ax.text(
        gammas[-1] / 2, min(edge * 1.4, 60), "diverges", color=VERMILION, fontsize=13, ha="center", fontweight="bold"
    )
    for gamma in mark:
        ax.axvline(gamma, color="white", linestyle=":", linewidth=1.5)
        ax.text(gamma + 0.008, 0.12, f"γ = {gamma:g}", color="white", rotation=90, fontsize=9, va="bottom")
    ax.set(
        yscale="log",
        xlabel=f"γ, the weight of the gradient difference   (β1 = {beta1:g}, ℓ = {ell_ratio:g}·η)",
        ylabel="ηλ/R: learning rate × curvature × preconditioner",
    )
    if beta1:
        top = ax.secondary_xaxis(
            "top", functions=(lambda g: _nu(g, beta1, ell_ratio), lambda nu: _gamma(nu, beta1, ell_ratio))
        )
        top.set_xlabel("ν = (1 − ℓ/η)(1 − γ/β1), the weight of the average in the direction")
    figure.colorbar(mesh, ax=ax, label="steps to divide the error by ten")
    return figure


def _nu(gamma: Any, beta1: float, ratio: float) -> Any:
    return (1 - ratio) * (1 - gamma / beta1)


def _gamma(nu: Any, beta1: float, ratio: float) -> Any:
    return beta1 * (1 - nu / (1 - ratio)) if ratio < 1 else nu


def certificate(c: Certificate, V0: float = 1.0, batch: float = 32, lowest: float = 0.0) -> "Figure":
    """Left: the learning rates with a certificate, and the edge of stability. Right: the bound over the steps."""
    figure, axes = new_figure(1, 2, (11, 4.8), "Theorem 2: the certified learning rates, and the bound they have")
    rates, bound = axes.flat
    ratio = c.ell / c.lr
    gammas = np.linspace(0, max(1.2, 1.2 * c.gamma), 121)
    shape = dict(L=c.L, nu_min=c.nu_min, nu_max=c.nu_max)
    limits = [largest_stable_lr(**shape, ell_ratio=ratio, beta1=c.beta1, gamma=g) for g in gammas]
    edges = [
        quadratic(GradientDifference(c.beta1, g), FixedPoint(ell_ratio=ratio)).largest_stable / (c.L * c.nu_max)
        for g in gammas[::3]
    ]
    rates.semilogy(
        gammas[::3], edges, color=INK, linestyle="--", label="edge of stability on a quadratic of curvature L"
    )
    rates.semilogy(gammas, limits, color=NAVY, linewidth=2.5, label="largest certified learning rate")
    rates.fill_between(gammas, min(limits) / 30, limits, color=SKY, alpha=0.3, label="certified")
    rates.plot([c.gamma], [c.lr], marker="o", markersize=10, color=VERMILION, linestyle="none", label="this setting")
    rates.set(
        title=f"β1 = {c.beta1:g}, ℓ = {ratio:g}·η, L = {c.L:g}, ν in [{c.nu_min:g}, {c.nu_max:g}]",
        xlabel="γ, the weight of the gradient difference",
        ylabel="learning rate η",
        ylim=(min(min(limits) / 3, c.lr / 2), max(max(edges) * 20, c.lr * 2)),
    )
    rates.legend(frameon=False, fontsize=9)
    if not c.feasible:
        bound.axis("off")
        reason = str(c.reason).replace("; ", ";\n").replace(": ", ":\n")
        bound.text(0.5, 0.5, f"no certificate here:\n\n{reason}", ha="center", va="center", wrap=True, fontsize=10)
        return figure
    T = np.unique(np.geomspace(1, 1e7, 60).astype(int))
    without_noise = [c.bound(t, V0, lowest=lowest) for t in T.tolist()]
    floor = c.floor(batch)
    bound.loglog(T, without_noise, color=NAVY, linestyle="--", label="term of the start: (V₀ − L*)/(d2·T)")
    if floor > 0:
        bound.axhline(floor, color=GOLD, linestyle="-.", label=f"term of the noise at batch {batch:g}: {floor:.3g}")
    bound.loglog(
        T,
        [c.bound(t, V0, batch, lowest=lowest) for t in T.tolist()],
        color=VERMILION,
        linewidth=2.5,
        label="the bound R(T)",
    )
    bound.set(
        title=f"V₀ − L* = {V0 - lowest:g}, σ² = {c.sigma2:g}",
        xlabel="steps T",
        ylabel="upper bound of the mean of ‖∇L‖²",
    )
    bound.legend(frameon=False, fontsize=9)
    return figure


def paths(runs: Trajectories, last_step: int | None = None) -> "Figure":
    """The paths of all combinations over the surface, one panel per geometry, up to a step."""
    figure, _ = _draw(runs, runs.steps if last_step is None else last_step)
    return figure


def animate(runs: Trajectories, path: str | Path, frames: int = 40, seconds: float = 6.0) -> Path:
    """Write a GIF in which the paths grow; it pauses at its end."""
    figure, lines = _draw(runs, runs.steps, dpi=72)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    title = figure.suptitle(_title(runs, runs.steps), fontsize=13, fontweight="bold")
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")  # one layout for all frames, so that nothing jumps
    colours = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).quantize(128, dither=Image.Dither.NONE)
    images = []
    for step in np.unique((np.linspace(0, 1, frames) ** 1.5 * runs.steps).astype(int)).tolist():
        title.set_text(_title(runs, step))
        for combination, (line, head) in lines.items():
            points = runs.by_combination[combination].points[: step + 1]
            line.set_data(*points.T)
            head.set_data(*points[-1:].T)
        canvas.draw()
        frame = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
        images.append(frame.quantize(palette=colours, dither=Image.Dither.NONE))
    durations = [round(1000 * seconds / len(images))] * (len(images) - 1) + [1500]  # milliseconds per frame
    options: dict[str, Any] = dict(save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    content = BytesIO()
    images[0].save(content, "gif", **options)
    write_atomically(path, content.getbuffer(), durable=False)
    return Path(path)


def _title(runs: Trajectories, step: int) -> str:
    return f"{runs.problem.title}, step {step:>3} of {runs.steps}"


def _draw(runs: Trajectories, last_step: int, dpi: int = 110) -> tuple["Figure", dict[tuple[str, str], Any]]:
    """The panels, and for each combination its line and the marker at its end."""
    geometries = list(dict.fromkeys(geometry for geometry, _ in runs.by_combination))
    columns = math.ceil(len(geometries) / 2)
    figure, axes = new_figure(2, columns, (4.8 * columns, 7.6), _title(runs, last_step))
    figure.set_dpi(dpi)
    panels = dict(zip(geometries, axes.flat, strict=False))
    for unused in axes.flat[len(geometries) :]:
        unused.set_axis_off()
    x0, x1, y0, y1 = runs.problem.window
    x, y = np.meshgrid(np.linspace(x0, x1, 200), np.linspace(y0, y1, 200))
    height = np.log10(runs.problem.function(x, y) + 1e-3)
    for geometry, ax in panels.items():
        ax.contourf(x, y, height, levels=9, cmap="Greys", vmin=height.min(), vmax=height.min() + 2.5 * np.ptp(height))
        ax.plot(*runs.problem.minimum, marker="*", markersize=15, color=GOLD, markeredgecolor="black", zorder=5)
        ax.plot(*runs.problem.start, marker="o", markersize=6, color="black", zorder=5)
        for label, point in (("start", runs.problem.start), ("minimum", runs.problem.minimum)):
            ax.annotate(label, point, xytext=(0, -14), textcoords="offset points", ha="center", fontsize=8, zorder=6)
        ax.set(xlim=(x0, x1), ylim=(y0, y1), title=f"{geometry} geometry", xlabel="θ₁", ylabel="θ₂")
        ax.grid(visible=False)
    figure.supxlabel("grey: the loss on a logarithmic scale, lighter is lower; η: the chosen learning rate", fontsize=9)
    lines = {}
    for combination, trajectory in runs.by_combination.items():
        geometry, correction = combination
        colour, dash = CORRECTION_STYLES.get(correction, (VIOLET, ":"))
        points = trajectory.points[: last_step + 1]
        (line,) = panels[geometry].plot(
            *points.T, color=colour, linestyle=dash, linewidth=1.5, label=f"{correction}, η = {trajectory.lr:.2g}"
        )
        (head,) = panels[geometry].plot(*points[-1:].T, marker="o", color=colour, markersize=5, linestyle="none")
        lines[combination] = line, head
    for ax in panels.values():
        ax.legend(loc=runs.problem.legend, fontsize=8, framealpha=0.8)
    return figure, lines
