"""Log lines: where a process writes them, in which form, and from which level on.

Lines go to standard error: in colour on a terminal, plain elsewhere, or as JSON for a collector of
logs. A file of `--log-config` (TOML) sets the form and levels:

    format = "json"
    level = "INFO"

    [levels]
    "streamlog.request" = "DEBUG"

Rule of this module: a message of a client can't forge a line, whatever the form.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tomllib
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from streamlog.cli.output.plain_text import OneLineFormatter
from streamlog.errors import ConfigError

PACKAGE = "streamlog"
FORMAT_VARIABLE = "STREAMLOG_LOG_FORMAT"
CONFIG_VARIABLE = "STREAMLOG_LOG_CONFIG"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class LineFormat(StrEnum):
    """The form of log lines."""

    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[
    LineFormat | None,
    typer.Option(
        "--log-format",
        envvar=FORMAT_VARIABLE,
        help="Log lines as text or as JSON, one object a line.",
    ),
]
LogConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--log-config",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        help="TOML with the format of log lines and levels of loggers.",
    ),
]


class LogConfig(msgspec.Struct, forbid_unknown_fields=True):
    """What a file of `--log-config` may say."""

    format: LineFormat = LineFormat.TEXT
    level: str = "INFO"
    levels: dict[str, str] = {}
    """Levels by the names of loggers."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object: time (ISO 8601, UTC), level, logger, message, and error if any."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        # `json` escapes line breaks and control characters, so a message stays within its line.
        return json.dumps(found)


def read_log_config(file: Path) -> LogConfig:
    """Read a file of `--log-config`.

    Raises:
        ConfigError: it can't be read, or a setting in it is unknown or invalid.
    """
    try:
        found = msgspec.convert(tomllib.loads(file.read_text()), LogConfig)
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file} is no configuration of logs: {error}") from error
    for name, level in (("", found.level), *found.levels.items()):
        if level not in LEVELS:
            whose = f"levels of {name}" if name else "level"
            raise ConfigError(f"{file}: {whose} must be one of {', '.join(LEVELS)}, not {level!r}")
    return found


def set_up_logging(*, verbose: bool, line_format: LineFormat | None, file: Path | None) -> None:
    """Write the package's log lines to standard error.

    Args:
        verbose: from DEBUG on, whatever the file says.
        line_format: the form of the lines, before that of the file.
        file: sets the form and levels.

    Raises:
        ConfigError: the file can't be read, or is not valid.
    """
    # The processes that a command starts log alike.
    if line_format is not None:
        os.environ[FORMAT_VARIABLE] = line_format
    if file is not None:
        os.environ[CONFIG_VARIABLE] = str(file.resolve())
    config = LogConfig() if file is None else read_log_config(file)
    package = logging.getLogger(PACKAGE)
    package.handlers = [_handler(line_format or config.format)]
    package.setLevel(logging.DEBUG if verbose else config.level)
    # An app that sets up the root logger would otherwise get each line twice.
    package.propagate = False
    # Before the levels of the file, so that it can ask for the client's lines after all.
    if not verbose:
        logging.getLogger("streamlog.client").setLevel(logging.WARNING)
    for name, level in config.levels.items():
        logging.getLogger(name).setLevel(level)


def _handler(line_format: LineFormat) -> logging.Handler:
    handler: logging.Handler
    if line_format is LineFormat.TEXT and sys.stderr.isatty():
        from rich.logging import RichHandler  # noqa: PLC0415 - a broker starts faster without

        from streamlog.cli.output.plain_console import stderr_console  # noqa: PLC0415 - the same

        handler = RichHandler(console=stderr_console(), show_path=False)
        handler.setFormatter(OneLineFormatter("%(message)s", datefmt="[%X]"))
        return handler
    handler = logging.StreamHandler()
    plain = OneLineFormatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(JsonFormatter() if line_format is LineFormat.JSON else plain)
    return handler
