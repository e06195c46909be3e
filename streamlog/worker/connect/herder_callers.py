"""Herder callers: who waits for the herder's answer to a request, or for a commit of its records.

The shells of the herder share them: that of a service (`connect_service/herder_shell`), and that of
an app (`app_herder`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from streamlog.connect.herding.herder_requests import CONFLICT, ConnectRefusal, RequestAnswer

ANSWER_MS: Final = 31_000
"""How long a request waits for its answer; the herder's own limit, `REQUEST_TIMEOUT_MS`, comes
first."""
INTERNAL_ERROR: Final = 500
WriteCaller: TypeAlias = "asyncio.Future[None] | None"
"""Done once records are committed; None if no caller waits for that."""


class Callers:
    """The requests that wait for their answers."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[RequestAnswer]] = {}
        self._asked = 0

    async def ask(self, begin: Callable[[int], None]) -> RequestAnswer:
        """Return the answer to a request.

        Args:
            begin: hands the request to the herder, under this number.

        Raises:
            ConnectRefusal: it is refused, or not answered in `ANSWER_MS`.
        """
        # Numbers only tell answers apart; a client that has left gets none.
        self._asked += 1
        number, waiting = self._asked, asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            begin(number)
            async with asyncio.timeout(ANSWER_MS / 1000):
                answer: RequestAnswer = await waiting
        except TimeoutError:
            raise ConnectRefusal(INTERNAL_ERROR, "Request timed out") from None
        finally:
            del self._waiting[number]
        return answer

    def answer(self, answer: RequestAnswer) -> None:
        """Hand an answer to the caller, if it still waits."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


def written(caller: WriteCaller) -> None:
    """Tell a caller that its records are committed."""
    if caller is not None and not caller.done():
        caller.set_result(None)


def not_written(caller: WriteCaller) -> None:
    """Tell a caller that its records will not be written."""
    if caller is not None and not caller.done():
        why = "Cannot complete request momentarily: the group has another leader"
        caller.set_exception(ConnectRefusal(CONFLICT, why))
