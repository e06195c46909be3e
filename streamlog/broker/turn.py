"""Turn: what is left to the end of an event's handling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class Turn:
    """The handling of one event, such as the arrival of bytes, and what is left to its end.

    1. A Produce to three partitions arrives. 2. A Fetch waits for all of them: the append to the
    first wakes it. 3. It looks at the logs at the end of the turn, finds the records of all three,
    and its answer leaves before the event loop waits again.
    """

    __slots__ = ("_depth", "_later")

    def __init__(self) -> None:
        self._depth = 0
        self._later: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Call what was left to the end, and what that leaves to it."""
        try:
            if self._depth == 1 and self._later:
                self._call()
        finally:
            self._depth -= 1

    def later(self, callback: Callable[[], object]) -> None:
        """Call `callback` at the end of this turn, or soon if an event is handled elsewhere."""
        if self._depth:
            self._later.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def _call(self) -> None:
        while self._later:
            later, self._later = self._later, []
            for each in later:
                # As the loop does for its callbacks: one client's error must neither reach another
                # client's request, nor keep the other callbacks from their call.
                try:
                    each()
                except Exception as error:  # noqa: BLE001 - see above
                    context = {"message": f"Exception in {each}", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
