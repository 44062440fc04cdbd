"""``python -m monarch ...`` is the command ``monarch ...``."""

import os
import sys

from . import command


def main() -> None:
    """Replaces this process by the command."""
    program = command()
    if program is None:
        sys.exit("monarch: there is no command `monarch` beside this Python or in PATH")
    os.execv(program, ["monarch", *sys.argv[1:]])


if __name__ == "__main__":
    main()
