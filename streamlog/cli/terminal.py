"""Terminal: what a command prints, and what an error looks like.

Results go to standard output, everything else to standard error. Rule of the file: a
`StreamlogError` is one line; if a user's function caused it, the traceback from that function
precedes the line. Any other error is a bug of streamlog and shows its whole traceback.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from streamlog.cli.output.plain_text import several_lines
from streamlog.errors import ProcessingError, StreamlogError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

OUTPUT_COLUMNS = 200
PACKAGE = Path(__file__).parent.parent

logger = logging.getLogger(__name__)


@contextmanager
def log_warnings() -> Iterator[None]:
    """Turn Python warnings in the block into lines of the log."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        logger.warning("%s", warning.message)


def out(*, markup: bool = False) -> Console:
    """Return a console on standard output; without a terminal, tables are as wide as they need.

    With `markup`, tags in texts are styles: escape texts that come from elsewhere.
    """
    from streamlog.cli.output.plain_console import (  # noqa: PLC0415 - a broker starts faster without
        PlainConsole,
    )

    width = None if sys.stdout.isatty() else OUTPUT_COLUMNS
    return PlainConsole(highlight=False, width=width, markup=markup, emoji=False)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_grid(grid: Grid, *, as_json: bool, markup: bool = False) -> None:
    """Print a table, or a JSON list with an object for each of its rows.

    Names are those of the columns. Whole numbers become numbers, and `-` becomes null.
    """
    if not as_json:
        out(markup=markup).print(grid)
        return
    names = [str(column.header).replace(" ", "_") for column in grid.columns]
    rows = zip(*(column.cells for column in grid.columns), strict=True)
    found = [
        {name: _cell(str(cell), markup=markup) for name, cell in zip(names, row, strict=True)}
        for row in rows
    ]
    typer.echo(json.dumps(found, ensure_ascii=False))


def _cell(text: str, *, markup: bool) -> str | int | None:
    if markup:
        from rich.markup import render  # noqa: PLC0415 - a broker starts faster without

        text = render(text).plain
    if text == "-":
        return None
    # Not each text of digits: an id of many digits, or one with a leading zero, stays a text.
    return int(text) if _NUMBER.fullmatch(text) else text


_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")


def say(text: str, *, err: bool = False) -> None:
    """Print a text, with the control characters escaped that names and errors may hold."""
    typer.echo(several_lines(text), err=err)


def fail(error: BaseException) -> NoReturn:
    """Print an error and exit with its code; raises an error that is a bug of streamlog."""
    if not isinstance(error, StreamlogError):
        raise error
    cause = error.__cause__
    if isinstance(error, ProcessingError) and not isinstance(cause, StreamlogError | None):
        _print_traceback(cause)
    say(f"error: {error}", err=True)
    sys.exit(error.exit_code)


def _print_traceback(error: BaseException) -> None:
    """Print the traceback from the first frame outside of streamlog."""
    ours, frame = str(PACKAGE), error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(ours):
        frame = frame.tb_next
    # Without a frame outside of streamlog, the whole traceback is shown.
    lines = traceback.format_exception(type(error), error, frame or error.__traceback__)
    say("".join(lines).rstrip("\n"), err=True)


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most telling error of a group: the first `StreamlogError`, else the first."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, StreamlogError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def parse_name_values(option: str, given: Iterable[str]) -> dict[str, str]:
    """Return the values of an option that takes NAME=VALUE, by name.

    Raises:
        UsageError: a value is not of that form.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} takes NAME=VALUE, not {text!r}")
        found[name] = value
    return found
