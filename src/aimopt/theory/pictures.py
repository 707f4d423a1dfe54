"""Pictures of the theory, each a matplotlib figure that explains itself.

    pictures.response({"RADAR": …, "AdamW": …})      gain, delay, weights of past gradients, first steps
    pictures.stability(beta1=0.9)                    where RADAR converges on a quadratic: ηλ × γ
    pictures.certificate(c, V0=1.0, batch=32)        the certified learning rates, and the bound over the steps
    pictures.paths(trajectories(PROBLEMS["beale"]))  the design space over a surface; `animate` makes a GIF of it

`save(figure, path)` writes one. Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

import math
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from aimopt.corrections import FixedPoint
from aimopt.filters import GradientDifference
from aimopt.theory.frequency import response as response_of
from aimopt.theory.lyapunov import Certificate, largest_stable_lr
from aimopt.theory.quadratics import quadratic
from aimopt.theory.subjects import Source
from aimopt.theory.trajectories import GEOMETRIES, Trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
COLOURS = (RED, BLUE, GREEN, PURPLE, ORANGE, BLACK, SKY)
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
OF_STEP = {"direct": (BLUE, "--"), "fixed point": (RED, "-"), "secant": (GREEN, "-."), "RADAR": (BLACK, "-")}


def new_figure(rows: int, columns: int, size: tuple[float, float], title: str) -> tuple["Figure", Any]:
    """A figure that needs no window, and its axes as an array."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'aimopt[theory]'") from error
    figure = Figure(figsize=size, layout="constrained", dpi=110)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    return figure, axes


def save(figure: "Figure", path: str | FilePath) -> FilePath:
    """Write a figure; the ending of the name chooses the format."""
    figure.savefig(path)
    return FilePath(path)


def response(sources: Mapping[str, Source], steps: int = 30) -> "Figure":
    """A Bode plot with group delay above; the weights of past gradients, a jump and the first steps below."""
    figure, axes = new_figure(2, 3, (14.4, 7.4), "What moves the parameter, as a filter of the gradient")
    gain, phase, delay, weight, jump, first = axes.flat
    cycles = np.geomspace(1e-3, 0.5, 400)
    count = np.arange(1, steps + 1)
    for i, (name, source) in enumerate(sources.items()):
        one = response_of(source)
        line = dict(color=COLOURS[i % len(COLOURS)], linestyle=STYLES[i % len(STYLES)], linewidth=2, label=name)
        values = one.at(2 * math.pi * cycles)
        gain.loglog(cycles, np.abs(values), **line)
        phase.semilogx(cycles, np.degrees(np.unwrap(np.angle(values))), **line)
        delay.semilogx(cycles, one.group_delay(2 * math.pi * cycles), **line)
        jump.plot(count, one.step(steps), marker=".", **line)
        first.plot(count, one.first_steps(steps).gain, marker=".", **line)
        nu = "" if one.nu is None else f", ν = {one.nu:.2f}"
        line["label"] = f"{name}: Σh² = {one.noise_gain:.3f}{nu}"
        weight.plot(count - 1, one.impulse(steps), marker=".", **line)
    for ax in (gain, phase, delay):
        ax.set_xlabel("frequency of the gradient (cycles a step)")
        ax.axvline(0.5, color="0.6", linewidth=1)
        ax.set_xlim(9e-4, 0.75)
        flips = dict(rotation=90, va="center", fontsize=8, color="0.4", transform=ax.get_xaxis_transform())
        ax.text(0.53, 0.5, "the sign flips at every step", **flips)
    gain.set(title="Gain: which changes get through", ylabel="amplitude out / amplitude in")
    phase.set(title="Phase: by how much of a cycle they lag", ylabel="degrees")
    delay.set(title="Group delay: how late they come", ylabel="steps")
    weight.set(title="Weight of past gradients", xlabel="age of the gradient (steps)", ylabel="weight h")
    jump.set(title="A gradient that jumps to 1 during a run", xlabel="steps since the jump", ylabel="direction")
    first.set(
        title="A gradient of 1 from the very first step", xlabel="step", ylabel="direction, bias correction included"
    )
    gain.legend(frameon=False)
    weight.legend(frameon=False)
    return figure


def stability(beta1: float = 0.9, ell_ratio: float = 0.01, mark: tuple[float, ...] = (0.01, 0.1)) -> "Figure":
    """How many steps RADAR takes to divide the error by ten on a quadratic, and where it diverges."""
    figure, axes = new_figure(1, 1, (8.6, 5.6), "Where RADAR converges on a quadratic ½λx², and how fast")
    from matplotlib.colors import LogNorm

    ax: Axes = axes[0, 0]
    # 144 points miss γ = β1, where the average is cancelled and a hair-thin line would look like a fault
    gammas, h = np.linspace(0, 1.5 * max(beta1, 0.2), 144), np.geomspace(1e-2, 1e2, 401)
    radius = np.array(
        [quadratic(GradientDifference(beta1, g), FixedPoint(ell_ratio=ell_ratio)).spectral_radius(h) for g in gammas]
    ).T
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(radius < 1, math.log(10) / -np.log(radius), np.nan)
    shown = ax.pcolormesh(gammas, h, steps, norm=LogNorm(2, 300), cmap="viridis_r", shading="nearest", rasterized=True)
    calm = np.where(radius < 0.95, steps, np.nan)  # at the edge the lines would crowd
    lines = ax.contour(
        gammas,
        h,
        np.where(h[:, None] < 0.3, steps, calm),
        levels=[3, 5, 10, 20, 50, 100, 200],
        colors="white",
        linewidths=0.8,
    )
    ax.clabel(lines, fmt=lambda x: f"{x:.0f}", fontsize=8)
    ax.contourf(gammas, h, radius, levels=[1, np.inf], colors="0.92")
    ax.contour(gammas, h, radius, levels=[1], colors=RED, linewidths=2.5)
    edge = quadratic(GradientDifference(beta1, 0.0), FixedPoint(ell_ratio=ell_ratio)).largest_stable
    ax.text(gammas[-1] / 2, min(edge * 1.4, 60), "diverges", color=RED, fontsize=13, ha="center", fontweight="bold")
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
    figure.colorbar(shown, ax=ax, label="steps to divide the error by ten")
    return figure


def _nu(gamma: Any, beta1: float, ratio: float) -> Any:
    return (1 - ratio) * (1 - gamma / beta1)


def _gamma(nu: Any, beta1: float, ratio: float) -> Any:
    return beta1 * (1 - nu / (1 - ratio)) if ratio < 1 else nu


def certificate(c: Certificate, V0: float = 1.0, batch: float = 32, lowest: float = 0.0) -> "Figure":
    """Left: the learning rates with a certificate, and the edge on quadratics. Right: the bound over the steps."""
    figure, axes = new_figure(1, 2, (11, 4.8), "Theorem 2: which learning rates are certified, and what is promised")
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
        gammas[::3], edges, color=BLACK, linestyle="--", label="edge of stability on a quadratic of curvature L"
    )
    rates.semilogy(gammas, limits, color=BLUE, linewidth=2.5, label="largest certified learning rate")
    rates.fill_between(gammas, min(limits) / 30, limits, color=SKY, alpha=0.3, label="certified")
    rates.plot([c.gamma], [c.lr], marker="o", markersize=10, color=RED, linestyle="none", label="this setting")
    rates.set(
        title=f"β1 = {c.beta1:g}, ℓ = {ratio:g}·η, L = {c.L:g}, ν in [{c.nu_min:g}, {c.nu_max:g}]",
        xlabel="γ, the weight of the gradient difference",
        ylabel="learning rate η",
        ylim=(min(min(limits) / 3, c.lr / 2), max(max(edges) * 20, c.lr * 2)),
    )
    rates.legend(frameon=False, fontsize=9)
    if not c.feasible:
        bound.axis("off")
        words = c.why.replace("; ", ";\n").replace(": ", ":\n")
        bound.text(0.5, 0.5, f"no certificate here:\n\n{words}", ha="center", va="center", wrap=True, fontsize=10)
        return figure
    T = np.unique(np.geomspace(1, 1e7, 60).astype(int))
    start = (V0 - lowest) / (c.d2 * T)
    floor = c.floor(batch)
    bound.loglog(T, start, color=BLUE, linestyle="--", label="of the start: (V₀ − L*)/(d2·T)")
    if floor > 0:
        bound.axhline(floor, color=ORANGE, linestyle="-.", label=f"of the noise at batch {batch:g}: {floor:.3g}")
    bound.loglog(T, start + floor, color=RED, linewidth=2.5, label="the bound R(T)")
    bound.set(
        title=f"V₀ − L* = {V0 - lowest:g}, σ² = {c.sigma2:g}",
        xlabel="steps T",
        ylabel="mean of ‖∇L‖² over the run, at most",
    )
    bound.legend(frameon=False, fontsize=9)
    return figure


def paths(run: Trajectories, until: int | None = None) -> "Figure":
    """The paths of every cell over the surface, a panel a geometry, up to a step."""
    figure, _ = _draw(run, run.steps if until is None else until)
    return figure


def animate(run: Trajectories, path: str | FilePath, frames: int = 40, seconds: float = 6.0) -> FilePath:
    """Write the paths growing, as a GIF that stays a while at its end."""
    figure, lines = _draw(run, run.steps, dpi=72)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    title = figure.suptitle(_title(run, run.steps), fontsize=13, fontweight="bold")
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")  # laid out once, so that nothing jumps
    palette = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).quantize(128, dither=Image.Dither.NONE)
    images = []
    for step in np.unique((np.linspace(0, 1, frames) ** 1.5 * run.steps).astype(int)).tolist():
        title.set_text(_title(run, step))
        for cell, (line, head) in lines.items():
            points = run.paths[cell].points[: step + 1]
            line.set_data(*points.T)
            head.set_data(*points[-1:].T)
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
        images.append(picture.quantize(palette=palette, dither=Image.Dither.NONE))
    each = round(1000 * seconds / len(images))
    durations = [each] * (len(images) - 1) + [1500]
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    return FilePath(path)


def _title(run: Trajectories, step: int) -> str:
    return f"{run.problem.title}, step {step:>3} of {run.steps}"


def _draw(run: Trajectories, until: int, dpi: int = 110) -> tuple["Figure", dict[tuple[str, str], Any]]:
    """The panels, and for each cell its line and its head."""
    figure, axes = new_figure(2, 2, (9.6, 7.6), _title(run, until))
    figure.set_dpi(dpi)
    panels = dict(zip(GEOMETRIES, axes.flat, strict=True))
    x0, x1, y0, y1 = run.problem.window
    x, y = np.meshgrid(np.linspace(x0, x1, 200), np.linspace(y0, y1, 200))
    height = np.log10(run.problem.function(x, y) + 1e-3)
    for geometry, ax in panels.items():
        ax.contourf(x, y, height, levels=9, cmap="Greys", vmin=height.min(), vmax=height.min() + 2.5 * np.ptp(height))
        ax.plot(*run.problem.minimum, marker="*", markersize=15, color=ORANGE, markeredgecolor="black", zorder=5)
        ax.plot(*run.problem.start, marker="o", markersize=6, color="black", zorder=5)
        for words, where in (("start", run.problem.start), ("minimum", run.problem.minimum)):
            ax.annotate(words, where, xytext=(0, -14), textcoords="offset points", ha="center", fontsize=8, zorder=6)
        ax.set(xlim=(x0, x1), ylim=(y0, y1), title=f"{geometry} geometry", xlabel="θ₁", ylabel="θ₂")
        ax.grid(visible=False)
    figure.supxlabel("grey: the loss, the lighter the lower (logarithmic); η: the learning rate chosen", fontsize=9)
    lines = {}
    for cell, path in run.paths.items():
        geometry, correction = cell
        colour, style = OF_STEP[correction]
        points = path.points[: until + 1]
        (line,) = panels[geometry].plot(
            *points.T, color=colour, linestyle=style, linewidth=1.5, label=f"{correction}, η = {path.lr:.2g}"
        )
        (head,) = panels[geometry].plot(*points[-1:].T, marker="o", color=colour, markersize=5, linestyle="none")
        lines[cell] = line, head
    for ax in panels.values():
        ax.legend(loc=run.problem.legend, fontsize=8, framealpha=0.8)
    return figure, lines
