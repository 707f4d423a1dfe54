"""Packages of the extra `language`, imported at first use."""

from importlib import import_module
from typing import Any


def import_language_module(module: str) -> Any:
    """A module of a package for language tasks."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"language tasks need {error.name}: pip install 'aimopt[language]'") from error
