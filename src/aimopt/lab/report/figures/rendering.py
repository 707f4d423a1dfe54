"""All pictures of a report in all formats, on as many cores as there are.

    drawn = draw_all([("compare-digits-demo-rates", picture)], styles, files=("png", "pdf"))
    drawn["compare-digits-demo-rates"].svg                 the element of the page; .data for its tooltips
    drawn["compare-digits-demo-rates"].files["pdf"]        the content of a file

Rendering is most of the time that a report takes. A process that is forked has the pictures already, and sends back
what it made of its share. The bytes are the same as without it.
"""

import contextlib
import gc
import math
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeVar

from matplotlib.lines import Line2D
from PIL import Image

from aimopt.lab.report.figures.style import Picture, Style, save, styled
from aimopt.lab.report.figures.svg import plot_data, svg

PICTURES_PER_PROCESS = 6  # fewer are drawn before another process would be of use
T = TypeVar("T")
R = TypeVar("R")


class Drawn(NamedTuple):
    """A picture in all formats."""

    svg: str
    data: str  # for tooltips, as JSON
    files: Mapping[str, bytes]  # by the ending of their names


def draw_all(
    pictures: Sequence[tuple[str, Picture]], styles: Mapping[str, Style], files: Sequence[str]
) -> dict[str, Drawn]:
    """Pictures, by name, for a page, and as files of these formats."""

    def draw(named: tuple[str, Picture]) -> Drawn:
        name, picture = named
        drawing = svg(picture, name)  # first: it decides where the axes lie
        data = plot_data(picture)
        titled = for_paper(picture, styles) if files else picture
        return Drawn(drawing, data, {ending: render(titled, ending) for ending in files})

    with _without_old_objects():
        drawn = on_all_cores(draw, pictures)
    return {name: own for (name, _), own in zip(pictures, drawn, strict=True)}


@styled
def render(picture: Picture, ending: str) -> bytes:
    """A picture as a file of a format: `png`, `pdf`."""
    content = BytesIO()
    if ending == "png":
        save(picture, content, format="rgba")
    else:
        save(picture, content, format=ending, metadata={"CreationDate": None})  # the same picture, the same bytes
    picture.figure.set_layout_engine(None)  # the next format takes the same places: finding them is most of the work
    return _with_a_palette(picture, content.getvalue()) if ending == "png" else content.getvalue()


def _with_a_palette(picture: Picture, pixels: bytes) -> bytes:
    """A PNG in a third of the space: few colours are all a picture of lines has."""
    width, height = (int(size) for size in picture.figure.bbox.size)
    image, smaller = Image.frombytes("RGBA", (width, height), pixels), BytesIO()
    image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(smaller, "png", optimize=True)
    return smaller.getvalue()


@styled
def for_paper(picture: Picture, styles: Mapping[str, Style]) -> Picture:
    """With the title and the legend that a page shows beside it."""
    ax = picture.figure.axes[0]
    room = 16.0  # points between the axes and the title
    if picture.lines:
        drawn = [(str(line["label"]), styles[str(line["label"])]) for line in picture.lines]
        handles = [Line2D([], [], color=s.light, linestyle=s.dash, linewidth=1.6, label=name) for name, s in drawn]
        columns = min(4, len(handles))
        height = 13.0 * math.ceil(len(handles) / columns)
        room += height
        picture.figure.set_figheight(picture.figure.get_figheight() + height / 72)
        ax.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, handlelength=3
        )
    ax.set_title(picture.title, fontsize=10.5, fontweight="bold", pad=room)
    return picture


def on_all_cores(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What a function makes of every item; forked processes take a share each, this one the first."""
    count = min(_processes(), len(items) // PICTURES_PER_PROCESS) or 1
    shares = [items[first::count] for first in range(count)]
    made: list[list[R]] = []
    with contextlib.ExitStack() as stack:
        sent = [stack.enter_context(_forked(function, share)) for share in shares[1:]]
        made.append([function(item) for item in shares[0]])
        for share, pipe in zip(shares[1:], sent, strict=True):
            try:
                made.append(pipe.recv())
            except EOFError:  # that process failed or was killed: what is wrong with its share is seen here
                made.append([function(item) for item in share])
    return [made[index % count][index // count] for index in range(len(items))]


def _processes() -> int:
    """How many processes may share the work. A fork takes one thread along, and others may hold what it needs."""
    alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" and alone else 1


@contextlib.contextmanager
def _forked(function: Callable[[T], R], items: Sequence[T]) -> Iterator[Connection]:
    """A process that sends what a function makes of items; it is ended when the block is left."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, function, items), daemon=True)
    with warnings.catch_warnings():
        # Python warns of the threads of numerical libraries: they wait for work, and drawing gives them none.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sending.close()
    try:
        yield receiving
    finally:
        receiving.close()
        process.kill()
        process.join()


def _send(pipe: Connection, function: Callable[[T], R], items: Sequence[T]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it, which ends this one
    with contextlib.suppress(Exception):
        pipe.send([function(item) for item in items])


@contextlib.contextmanager
def _without_old_objects() -> Iterator[None]:
    """Keep the collector off the runs of a large store: drawing makes much garbage, and each search walks over all."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
