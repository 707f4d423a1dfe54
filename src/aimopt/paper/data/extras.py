"""Packages of the extra `language`, imported at first use."""

from importlib import import_module
from typing import Any

from aimopt.messages.extras import install_command


def import_language_module(module: str) -> Any:
    """A module of a package for language tasks."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"language tasks need {error.name}: {install_command('language')}") from error
