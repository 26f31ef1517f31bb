"""`python -m qq` is the command `qq`."""

import sys

from qq.cli import main

if __name__ == "__main__":
    sys.exit(main())
