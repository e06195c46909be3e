"""LoggerLevels: the loggers of this broker as a config resource, BROKER_LOGGER (KIP-412).

Levels are shown and changed while the broker runs, and are forgotten when it stops. Python has no
TRACE and calls FATAL critical; Kafka's names are used on the wire.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from streamlog.broker.settings import Kind, Operation, Source
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.admin import DescribeConfigsResourceResult

ROOT: Final = "root"
PACKAGE: Final = "streamlog"
LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
NAMES: Final = {number: name for name, number in LEVELS.items()}


class LoggerLevels:
    """The levels of the loggers of this process."""

    def described(self) -> list[DescribeConfigsResourceResult]:
        """The level that holds for each logger."""
        return [
            DescribeConfigsResourceResult(
                name=name,
                value=_level_name(_logger(name).getEffectiveLevel()),
                config_source=Source.BROKER_LOGGER,
                config_type=Kind.STRING,
                documentation=None,
            )
            for name in (ROOT, *_names())
        ]

    def alter(self, changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool) -> None:
        """Set levels, or with DELETE let loggers follow the one above them.

        All changes are checked before the first one is made.

        Raises:
            LogError: INVALID_REQUEST, an operation is neither SET nor DELETE, or ROOT would be
                deleted; INVALID_CONFIG, there is no such logger or level.
        """
        wanted = {name: _wanted(name, operation, value) for name, operation, value in changes}
        if not validate_only:
            for name, level in wanted.items():
                _logger(name).setLevel(level)


def _wanted(name: str, operation: int, value: str | None) -> int:
    if name not in (ROOT, *_names()):
        raise error_for(
            ErrorCode.INVALID_CONFIG,
            f"there is no logger {name!r}: DescribeConfigs of this resource lists them",
        )
    if operation == Operation.DELETE:
        if name == ROOT:
            raise _invalid("the root logger always has a level: set another one")
        return logging.NOTSET
    if operation != Operation.SET:
        raise _invalid(f"the level of logger {name!r} can be set or deleted, nothing else")
    if value not in LEVELS:
        raise error_for(
            ErrorCode.INVALID_CONFIG,
            f"logger {name!r} can't have level {value!r}: use one of {', '.join(LEVELS)}",
        )
    return LEVELS[value]


def _names() -> list[str]:
    """The package's loggers, those above them included."""
    known = {each for each in logging.root.manager.loggerDict if _is_own(each)}
    return sorted(known | {PACKAGE})


def _is_own(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(level: int) -> str:
    at_most = [number for number in NAMES if number <= level]
    return NAMES[max(at_most)] if at_most else "TRACE"


def _invalid(detail: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, detail)
