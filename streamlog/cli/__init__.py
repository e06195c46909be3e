"""The command line: `streamlog`, `python -m streamlog`, and `app.main()` of an app.

`root` has what is given before a command's name, and runs it all; `loading` has the table of
commands, each in a module of its own: `worker` runs an app, `broker` a log, `dev` a whole cluster,
`records` writes and reads by hand, `groups` has what is about consumer groups, `log` what works on
a directory of a log without a broker, `doctor` tells what is installed. `session`, `running` and
`terminal` are the shell around them. typer and rich are imported in this package and nowhere else.
"""

from streamlog.cli.root import main

__all__ = ["main"]
