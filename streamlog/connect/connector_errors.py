"""Connector errors: what a connector raises so that the runtime knows what to do next.

Rule: the class decides. `BadRecord` and `BadRecords` go to the error policy, `Retriable` waits and
tries again, `Fenced` ends the task without a failure, and any other error fails the task, unless
the connector lists it as `transient`. Unless the policy is `FAIL`, an error of a sink's `write` or
`commit` that names no record counts as that of some record, which is found by halves; `ConfigError`
says that none is at fault, and `Refused` that this may end without a change of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError, StreamlogError, quantity
from streamlog.serdes.erased_types import JsonValue


class ConnectError(StreamlogError):
    """Base of the errors that a connector raises for the runtime."""

    exit_code = 7


class BadRecord(ConnectError):
    """The record can't be carried, now or later: its error policy decides.

    Attributes:
        offset: where a source continues behind the record; None leaves that to the source, which is
            read again from the last offset that it gave.
    """

    def __init__(self, message: str = "", *, offset: Mapping[str, JsonValue] | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class BadRecords(ConnectError):
    """Some records of a batch can't be carried; the others may be written again at once.

    Attributes:
        why: the reason for each bad record, by its index in the batch.
    """

    def __init__(self, why: Mapping[int, str]) -> None:
        first = next(iter(why.items()), None)
        detail = "" if first is None else f": record {first[0]}: {first[1]}"
        super().__init__(f"{quantity(len(why), 'bad record')} in a batch{detail}")
        self.why = dict(why)


class Retriable(ConnectError):
    """The records are sound, but the other side can't take or give them now: try again later.

    Attributes:
        after_ms: the shortest wait before the next attempt, in milliseconds; None leaves it to the
            runtime's back-off.
    """

    retriable = True

    def __init__(self, message: str, *, after: Dur | None = None) -> None:
        super().__init__(message)
        self.after_ms = None if after is None else duration_ms(after)


class Refused(ConfigError):
    """The other side refuses a login, a right or a name until its operator changes something.

    No record is at fault. A service fails the task, and starts it again after a minute or more.
    """


class Fenced(ConnectError):
    """Another task has taken over the partitions; nothing that this one does counts any more."""

    fatal = True


def is_of_connection(error: BaseException, transient: tuple[type[BaseException], ...]) -> bool:
    """Return whether an error says that the other side can't be reached at the moment.

    Args:
        error: the error of a connector.
        transient: the classes that the connector lists; its own errors say so themselves.
    """
    if isinstance(error, ConnectError):
        return isinstance(error, Retriable)
    return isinstance(error, transient)


def reason(error: BaseException) -> str:
    """Return an error of a connector as one line, with its class unless it is one of ours."""
    # Servers write paragraphs, whose line ends would stand in the line of the log.
    text = " ".join(str(error).split())
    return text if isinstance(error, ConnectError) and text else f"{type(error).__name__}: {text}"
