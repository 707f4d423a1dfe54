"""Ready-made studies by name, for any task: functions under the entry point group `aimopt.presets`.

[project.entry-points."aimopt.presets"]
warmup = "my_package.presets:warmup"         called as warmup("spirals", "mini", seeds=(0, 1)); returns a Study
"""

from typing import Any

from aimopt.lab.protocol.entry_points import PRESETS
from aimopt.lab.protocol.study import Study
from aimopt.lab.protocol.user_code import user_code


def available() -> list[str]:
    """The names of the installed presets."""
    return PRESETS.names()


def study(name: str, task: str, scale: str, **overrides: Any) -> Study:
    """The study that a preset makes for a task."""
    make_preset = PRESETS.load(name)
    with user_code(f"the preset {name} cannot be made for {task}", explained=(ValueError,)):
        preset_study = make_preset(task, scale, **overrides)
    if not isinstance(preset_study, Study):
        raise ValueError(f"the preset {name} must return a Study, got {type(preset_study).__name__}")
    return preset_study
