"""`streamlog` and `python -m streamlog`: the command line.

The console script begins here, not in `streamlog.cli`: what that imports takes a fraction of a
second, in which Ctrl-C must not print a traceback either.
"""

from __future__ import annotations

from typing import NoReturn

from streamlog.interrupts import exit_at_once


def main() -> NoReturn:
    """Run the command line and exit."""
    exit_at_once()
    from streamlog.cli import main as command_line  # noqa: PLC0415 - see above

    command_line()


if __name__ == "__main__":
    main()
