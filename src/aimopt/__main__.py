"""`python -m aimopt`: what is live here."""

from aimopt import __version__, kernels

if __name__ == "__main__":
    print(f"aimopt {__version__}")
    for path, state in kernels.status().items():
        print(f"  {path:<12}{state}")
