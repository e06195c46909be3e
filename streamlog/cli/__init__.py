"""The command line: `streamlog`, `python -m streamlog`, and `app.main()` of an app.

`root` has the options before a command's name and the table of commands, which names the module of
each: `worker_command` runs an app, `broker_command` a broker, `dev_command` a whole cluster,
`records_commands` writes and reads records, `groups_command` shows and moves consumer groups,
`log_command` checks and repairs a log's files without a broker, `doctor` shows what is installed.
`session` and `terminal` are the shell around them. Only this package imports typer and rich.
"""

from streamlog.cli.root import main

__all__ = ["main"]
