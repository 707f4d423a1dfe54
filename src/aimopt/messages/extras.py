"""How to install the packages that a part of this package needs."""


def install_command(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install 'aimopt[{extra}]'"
