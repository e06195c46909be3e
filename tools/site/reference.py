"""Reference pages that are made from the code: Python API, command line, errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

from streamlog import errors
from streamlog.cli.root import COMMANDS, load_command

API: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "app": ("Apps and topics", ("streamlog.App", "streamlog.Topic", "streamlog.Sent")),
    "streams": (
        "Streams and agents",
        ("streamlog.Stream", "streamlog.Record", "streamlog.AgentRef"),
    ),
    "windows": (
        "Windows",
        (
            "streamlog.Grouped",
            "streamlog.WindowedStream",
            "streamlog.tumbling",
            "streamlog.hopping",
            "streamlog.sliding",
            "streamlog.session",
            "streamlog.calendar",
            "streamlog.count_window",
            "streamlog.Windows",
            "streamlog.Windowed",
            "streamlog.Emit",
            "streamlog.Late",
            "streamlog.Dur",
        ),
    ),
    "aggregations": ("Aggregations", ("streamlog.agg", "streamlog.Aggregator")),
    "tables": (
        "Tables and joins",
        ("streamlog.Table", "streamlog.GlobalTable", "streamlog.JoinWindow"),
    ),
    "processors": (
        "Processors",
        (
            "streamlog.Processor",
            "streamlog.Context",
            "streamlog.Store",
            "streamlog.Timers",
            "streamlog.kv_store",
            "streamlog.punctuate",
        ),
    ),
    "types": ("Types", ("streamlog.Serde", "streamlog.migration")),
    "failures": (
        "Error policies",
        (
            "streamlog.on_error",
            "streamlog.ErrorPolicy",
            "streamlog.StreamlogError",
            "streamlog.ProcessingError",
        ),
    ),
    "testing": (
        "Test driver",
        ("streamlog.testing.driver.TestDriver", "streamlog.testing.simulation.Simulation"),
    ),
    "history": ("Histories", ("streamlog.history.job.BackfillJob", "streamlog.Snapshot")),
    "client": (
        "Consumer, producer, transactions",
        (
            "streamlog.log.Log",
            "streamlog.client.consumer.Consumer",
            "streamlog.client.producer.Producer",
            "streamlog.client.producer.transaction_session.Transaction",
        ),
    ),
    "admin": ("Admin", ("streamlog.client.admin.Admin",)),
    "spark": ("Spark", ("spark_bridge.session", "spark_bridge.register")),
}
"""Each page of the Python API: its title, and the objects on it."""
COMMANDS_INTRO: Final = (
    "Every command with its arguments and options, made from the code: the text is that of "
    "`--help`. [Command line](../cli.md) explains them."
)
ERRORS_INTRO: Final = (
    "Every error of streamlog, made from the code. `StreamlogError` is the base of all: catch it, "
    "or the class that you can handle. A *retriable* error may go away by itself; after a *fatal* "
    "one, the client has to be closed. The exit code is that of a command or worker that the error "
    "ends; [Command line](../cli.md#exit-codes) has what to do about each."
)


def api_pages() -> Iterator[tuple[str, str]]:
    """Return the pages of the Python API, which the site fills from docstrings."""
    for name, (title, objects) in API.items():
        listed = ", ".join(f"`{each.rpartition('.')[2]}`" for each in objects)
        filled = "\n".join(f"::: {each}\n" for each in objects)
        yield f"api/{name}.md", f"# {title}\n\nReference of {listed}, from the code.\n\n{filled}"


def command_page() -> str:
    """Return the reference of all commands with their arguments and options."""
    parts = [
        "# Command reference",
        COMMANDS_INTRO,
    ]
    for name in COMMANDS:
        parts += _command(f"streamlog {name}", load_command(name))
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401 - of Typer's copy of Click
    depth = min(name.count(" ") + 1, 4)
    yield f"{'#' * depth} {name}"
    if help_text := inspect.cleandoc(command.help or ""):
        yield help_text
    if rows := [_parameter(each) for each in command.params if not getattr(each, "hidden", False)]:
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows])
    for each, inner in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {each}", inner)


def _parameter(each: Any) -> str:  # noqa: ANN401 - of Typer's copy of Click
    meaning = " ".join((getattr(each, "help", None) or "").split())
    if each.param_type_name == "argument":
        names = f"`{(each.metavar or each.name).upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
        names += f" `{each.metavar}`" if each.metavar else ""
    needed = " Required." if each.required else ""
    return f"| {_cell(names)} | {_cell(meaning)}{needed} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def error_page() -> str:
    """Return the reference of all errors: what each means, its exit code, and its flags."""
    rows = [_error(each) for each in vars(errors).values() if _is_error(each)]
    return "\n".join(
        [
            "# Error reference",
            "",
            ERRORS_INTRO,
            "",
            "| error | is a | exit code | flags | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, errors.StreamlogError)


def _error(kind: type[errors.StreamlogError]) -> str:
    flags = [name for name in ("retriable", "fatal", "aborts_transaction") if getattr(kind, name)]
    meaning = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    base = (kind.__base__ or kind).__name__
    shown = ", ".join(flag.replace("_", " ") for flag in flags)
    return f"| `{kind.__name__}` | `{base}` | {kind.exit_code} | {shown} | {_cell(meaning)} |"
