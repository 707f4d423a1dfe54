"""Tasks (`aimopt.tasks`) and presets (`aimopt.presets`) that installed packages register under a name.

The names come from the metadata of the packages. A module is imported only when its name is used.
"""

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from aimopt.lab.protocol.user_code import user_code
from aimopt.messages.spelling import suggestion


@dataclass(frozen=True, kw_only=True)
class EntryPoints:
    """One group of entry points."""

    group: str
    kind: str  # the noun for one of them in messages

    def names(self) -> list[str]:
        """All names, in alphabetical order."""
        return sorted({point.name for point in _points(self.group, *sys.path)})

    def load(self, name: str, advice: str = "") -> Any:
        """Import the object that is registered under a name; messages about unknown names end with `advice`."""
        points = self._called(name)
        if not points:
            _points.cache_clear()  # a package may have been installed since
            points = self._called(name)
        if not points:
            raise ValueError(f"no {self.kind} is called {name!r}; {suggestion(name, self.names())}{advice}")
        if len(points) > 1:
            packages = " and ".join(sorted(_package(point) for point in points.values()))
            raise ValueError(f"{packages} both have a {self.kind} called {name!r}; uninstall one of them")
        (point,) = points.values()
        with user_code(f"the {self.kind} {name} of {_package(point)} cannot be loaded"):
            return point.load()

    def _called(self, name: str) -> dict[str, EntryPoint]:
        return {point.value: point for point in _points(self.group, *sys.path) if point.name == name}


TASKS = EntryPoints(group="aimopt.tasks", kind="task")
PRESETS = EntryPoints(group="aimopt.presets", kind="preset")


@cache
def _points(group: str, *_: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, read once per search path: the metadata of all packages take 20 ms to read."""
    return tuple(entry_points(group=group))


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module
