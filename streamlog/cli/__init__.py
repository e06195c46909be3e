"""The command line: `streamlog`, `python -m streamlog`, and `app.main()` of an app.

`commands` has what works on an app or on a log by URL, `broker` runs one, `groups` has what is
about consumer groups, `log` what works on a directory of a log without a broker, `doctor` tells
what is installed; `session`, `running` and `terminal` are the shell around them. typer and rich are
imported in this package and nowhere else.
"""

from streamlog.cli.broker import parse_address
from streamlog.cli.commands import encode, main
from streamlog.cli.session import load_app

__all__ = ["encode", "load_app", "main", "parse_address"]
