"""AdminArea: the base of the areas of `Admin`, and how they raise refusals.

Brokers answer a request about several things one by one: they do what they accept. The caller gets
the first refusal as an exception, whose `refusals` holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeAlias, TypeVar

from streamlog.client.cluster import Cluster
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.schema import Message

M = TypeVar("M", bound=Message)
R = TypeVar("R")

ADMIN_TIMEOUT_MS = 30_000
"""How long the controller may take until a change has taken effect on all brokers."""

Outcome: TypeAlias = tuple[Hashable, int, str | None]
"""The subject of a part of a request, its error code (0 for none), and the broker's message."""


class AdminArea:
    """Sends admin requests over connections that belong to its creator."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _ask_controller(self, request: Message, answer: type[M], read: Callable[[M], R]) -> R:
        """Send a request to the controller and return `read(answer)`; retry retriable errors."""

        async def attempt() -> R:
            return read(await self._cluster.call_controller(request, answer))

        return await self._cluster.retrying(attempt)


def raise_refused(what: str, outcomes: Iterable[Outcome], *, retriable: bool = False) -> None:
    """Raise the first refusal, if there is one, with all of them in `refusals`.

    Args:
        what: what was requested of each subject, for the message.
        outcomes: one for each subject.
        retriable: whether the errors keep their own `retriable`. Else they are retriable only if
            no controller has looked at the request: a retry of the whole request would fail for
            the subjects that were accepted before.

    Raises:
        LogError: a subject was refused.
    """
    outcomes = list(outcomes)
    retriable = retriable or all(code == ErrorCode.NOT_CONTROLLER for _, code, _ in outcomes)
    refusals: dict[Any, LogError] = {}
    for about, error_code, message in outcomes:
        if error_code:
            name = repr(about) if isinstance(about, str) else str(about)
            error = error_for(error_code, f"{what} {name}", message)
            error.retriable = error.retriable and retriable
            refusals[about] = error
    for error in refusals.values():
        error.refusals = refusals
    for error in refusals.values():
        raise error


def check(what: str, error_code: int, message: str | None = None) -> None:
    """Raise the error of a whole request; `what` says what was requested.

    Raises:
        LogError: `error_code` is not 0.
    """
    if error_code:
        raise error_for(error_code, what, message)
