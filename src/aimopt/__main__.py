"""`python -m aimopt` is the command line `aimopt`."""

import sys

from aimopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
