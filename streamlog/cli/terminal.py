"""Terminal: what a command prints, where log lines go, and what an error looks like.

Standard output is for what was asked for, standard error for everything else. Rule of the file:
a `StreamlogError` is told without a traceback, but for the part that lies in the user's own
function; anything else is a bug of ours and shows all of it.
"""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from streamlog.cli.plain_text import OneLineFormatter, several_lines
from streamlog.errors import ProcessingError, StreamlogError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

OUTPUT_COLUMNS = 200
PACKAGE = Path(__file__).parent.parent

logger = logging.getLogger(__name__)


def set_up_logging(*, verbose: bool) -> None:
    """Lines for a terminal in colour, for a file or a pipe plain and unwrapped."""
    handler: logging.Handler
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - a broker starts faster without
        from rich.logging import RichHandler  # noqa: PLC0415 - the same

        handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.setFormatter(OneLineFormatter("%(message)s", datefmt="[%X]"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    package = logging.getLogger("streamlog")
    package.handlers = [handler]
    package.setLevel(logging.DEBUG if verbose else logging.INFO)
    package.propagate = False
    if not verbose:
        logging.getLogger("streamlog.client").setLevel(logging.WARNING)


@contextmanager
def log_warnings() -> Iterator[None]:
    """What is allowed but hardly meant, as lines of the log."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        logger.warning("%s", warning.message)


def out(*, markup: bool = False) -> Console:
    """Standard output; tables are as wide as they need to be if it is not a terminal.

    With `markup`, tags in texts are styles, so what comes from others has to be escaped.
    """
    from streamlog.cli.plain_console import (  # noqa: PLC0415 - a broker starts faster without
        PlainConsole,
    )

    width = None if sys.stdout.isatty() else OUTPUT_COLUMNS
    return PlainConsole(highlight=False, width=width, markup=markup, emoji=False)


def say(text: str, *, err: bool = False) -> None:
    """Print a text; what a terminal would obey in names and errors of others is escaped."""
    typer.echo(several_lines(text), err=err)


def fail(error: BaseException) -> NoReturn:
    """Tell an error and exit with its code; one that is a bug of ours is raised."""
    if not isinstance(error, StreamlogError):
        raise error
    cause = error.__cause__
    if isinstance(error, ProcessingError) and not isinstance(cause, StreamlogError | None):
        _print_traceback(cause)
    say(f"error: {error}", err=True)
    sys.exit(error.exit_code)


def _print_traceback(error: BaseException) -> None:
    """From the user's first line on: how it was called is our business."""
    ours, place = str(PACKAGE), error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename.startswith(ours):
        place = place.tb_next
    lines = traceback.format_exception(type(error), error, place or error.__traceback__)
    say("".join(lines).rstrip("\n"), err=True)


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of several at once that says most: one of ours, else the first."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, StreamlogError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def text_of(data: bytes | None) -> str:
    """Bytes as a line can show them; `-` stands for none."""
    if data is None:
        return "-"
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(data)[2:-1]


def parse_name_values(option: str, given: Iterable[str]) -> dict[str, str]:
    """What an option that takes NAME=VALUE was given.

    Raises:
        UsageError: it is not of that form.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} takes NAME=VALUE, not {text!r}")
        found[name] = value
    return found
