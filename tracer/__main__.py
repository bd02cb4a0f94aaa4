"""``python -m tracer``, and the command ``tracer``."""

import sys
from typing import NoReturn

from tracer.early_hang_up import take_early_hang_up


def main() -> NoReturn:
    """Run the command line of this process."""
    take_early_hang_up(sys.argv[1:])
    # Only now: what it imports takes most of the time until the recorder begins.
    from tracer import cli

    cli.main()


if __name__ == "__main__":
    main()
