"""AdminRoom: what the rooms of `Admin` have in common: whom they ask, and how refusals are told.

A request about several things is answered thing by thing. What can be done is done; of what was
refused the first is raised, and has all of them in `refusals`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeAlias, TypeVar

from streamlog.client.cluster import Cluster
from streamlog.errors import LogError
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.schema import Message

M = TypeVar("M", bound=Message)
R = TypeVar("R")

ADMIN_TIMEOUT_MS = 30_000
"""How long the controller may take to have something done everywhere."""

Outcome: TypeAlias = tuple[Hashable, int, str | None]
"""What a part of a request was about, its error code (0: none), and what the broker says to it."""


class AdminArea:
    """Asks brokers, over the connections of whoever made it, which it leaves open."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _ask_controller(self, request: Message, answer: type[M], read: Callable[[M], R]) -> R:
        """What `read` makes of the controller's answer; asked again while that may help."""

        async def attempt() -> R:
            return read(await self._cluster.call_controller(request, answer))

        return await self._cluster.retrying(attempt)


def raise_refused(what: str, outcomes: Iterable[Outcome], *, retriable: bool = False) -> None:
    """Raise the first refusal, if there is one, with all of them; `what` was to be done to each.

    They are `retriable` only if it is said: asked again, the others would fail as well, and
    what is missing stays missing.
    """
    refusals: dict[Any, LogError] = {}
    for about, error_code, message in outcomes:
        if error_code:
            name = repr(about) if isinstance(about, str) else str(about)
            error = error_for(error_code, f"{what} {name}" + (f": {message}" if message else ""))
            error.retriable = error.retriable and retriable
            refusals[about] = error
    for error in refusals.values():
        error.refusals = refusals
    for error in refusals.values():
        raise error


def check(what: str, error_code: int, message: str | None = None) -> None:
    """Raise the refusal of a whole request; `what` says what was asked for.

    Raises:
        LogError: there is an error code.
    """
    if error_code:
        raise error_for(error_code, what + (f": {message}" if message else ""))
