"""`python -m streamlog`: the command line without the console script."""

from __future__ import annotations

from streamlog.cli import main

if __name__ == "__main__":
    main()
