"""Render all pictures of a report in all formats, in parallel on all cores.

    rendered = render_all([("compare-images-rates", picture)], files=("png", "pdf"))
    rendered["compare-images-rates"].svg                 the element of the page; .data for its tooltips
    rendered["compare-images-rates"].files["pdf"]        the content of a file

Rendering takes most of the time of a report. A forked process has the pictures in its memory already, renders its share
and sends the bytes back. They are the same as without processes.
"""

import contextlib
import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeVar

from PIL import Image

from aimopt.lab.report.figures.labels import wrapped
from aimopt.lab.report.figures.style import Picture, save, styled
from aimopt.lab.report.figures.svg import plot_data, svg
from aimopt.measure.processes import ctrl_c_held_back

PRINTED_TITLE = 44  # characters per line of a title
PICTURES_PER_PROCESS = 6  # for fewer pictures another process does not pay off
T = TypeVar("T")
R = TypeVar("R")


class RenderedPicture(NamedTuple):
    """A picture in all formats."""

    svg: str
    data: str  # for tooltips, as JSON
    files: Mapping[str, bytes]  # by file ending


def render_all(pictures: Sequence[tuple[str, Picture]], files: Sequence[str]) -> dict[str, RenderedPicture]:
    """Render pictures for the page and as files of these formats. The result is by name."""

    def render_one(named: tuple[str, Picture]) -> RenderedPicture:
        name, picture = named
        drawing = svg(picture, name)  # first: it decides the positions of the axes
        data = plot_data(picture)
        titled = for_print(picture) if files else picture
        return RenderedPicture(drawing, data, {ending: render(titled, ending) for ending in files})

    with _without_old_objects():
        rendered = map_in_processes(render_one, pictures)
    return {name: picture for (name, _), picture in zip(pictures, rendered, strict=True)}


@styled
def render(picture: Picture, ending: str) -> bytes:
    """A picture as a file: `png` or `pdf`."""
    content = BytesIO()
    if ending == "png":
        save(picture, content, format="rgba")
    else:
        save(picture, content, format=ending, metadata={"CreationDate": None})  # the same picture gives the same bytes
    picture.figure.set_layout_engine(None)  # the next format uses the same layout: computing it is most of the work
    return _palette_png(picture, content.getvalue()) if ending == "png" else content.getvalue()


def _palette_png(picture: Picture, pixels: bytes) -> bytes:
    """A PNG with a palette, a third of the size: a picture of lines has few colours."""
    width, height = (int(size) for size in picture.figure.bbox.size)
    image, smaller = Image.frombytes("RGBA", (width, height), pixels), BytesIO()
    image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(smaller, "png", optimize=True)
    return smaller.getvalue()


@styled
def for_print(picture: Picture) -> Picture:
    """Add the title, which the page shows outside of the picture, and leave out what only a script can show."""
    for band in picture.figure.findobj(lambda artist: str(artist.get_gid()).startswith("band-")):
        band.remove()
    title = wrapped(picture.title, PRINTED_TITLE)
    picture.figure.suptitle(title, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
    picture.figure.set_figheight(picture.figure.get_figheight() + 0.22 * len(title.splitlines()))
    return picture


def map_in_processes(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Apply a function to every item, in this and in forked processes. The results are in the order of the items."""
    count = min(_processes(), len(items) // PICTURES_PER_PROCESS) or 1
    shares = [items[first::count] for first in range(count)]
    results: list[list[R]] = []
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(_forked(function, share)) for share in shares[1:]]
        results.append([function(item) for item in shares[0]])
        for share, pipe in zip(shares[1:], pipes, strict=True):
            try:
                results.append(pipe.recv())
            except EOFError:  # that process failed or was killed: an error of its share is raised here
                results.append([function(item) for item in share])
    return [results[index % count][index // count] for index in range(len(items))]


def _processes() -> int:
    """How many processes to use. A fork only copies one thread, and other threads may hold locks that it needs."""
    can_fork = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" and can_fork else 1


@contextlib.contextmanager
def _forked(function: Callable[[T], R], items: Sequence[T]) -> Iterator[Connection]:
    """A process that applies a function to items and sends the results; it is killed when the block is left."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, function, items), daemon=True)
    try:
        with warnings.catch_warnings(), ctrl_c_held_back():
            # Python warns about threads of numerical libraries: they are idle, and drawing does not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        sending.close()
        yield receiving
    finally:
        receiving.close()
        if process.pid is not None:  # it was started
            process.kill()
            process.join()


def _send(pipe: Connection, function: Callable[[T], R], items: Sequence[T]) -> None:
    with contextlib.suppress(Exception):
        pipe.send([function(item) for item in items])


@contextlib.contextmanager
def _without_old_objects() -> Iterator[None]:
    """Exclude existing objects from garbage collection: drawing triggers it often, and a large store has many."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
