"""Turns: runs something long in turns with everything else on the broker's loop.

It is a generator that hands out the futures it waits for, or None where it only lets others have
their turn. No task: what drives it are the loop's callbacks, and its owner stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

from streamlog.errors import StreamlogError

T = TypeVar("T")
Steps: TypeAlias = Generator["asyncio.Future[Any] | None", Any, T]


def pause(ms: int) -> asyncio.Future[None]:
    """To be handed out: goes on after so long."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(ms / 1000, lambda: None if over.done() else over.set_result(None))
    return over


class CooperativeRun(Generic[T]):
    """One generator on its way; `answer` gets what comes of it, then `on_over` is called."""

    def __init__(
        self, steps: Steps[T], answer: asyncio.Future[T], on_over: Callable[[], None]
    ) -> None:
        self._steps = steps
        self._answer = answer
        self._on_over = on_over
        self._stopped = False

    def go_on(self, done: asyncio.Future[Any] | None = None) -> None:
        """The next turn, with what was waited for."""
        if self._stopped:
            # Who waited was told that it is over (`stop`): a refusal counts as seen.
            error = None if done is None or done.cancelled() else done.exception()
            if error is not None and not isinstance(error, StreamlogError | OSError):
                raise error
            return
        try:
            if done is None:
                waits_for = self._steps.send(None)
            elif (error := done.exception()) is not None:
                waits_for = self._steps.throw(error)
            else:
                waits_for = self._steps.send(done.result())
        except StopIteration as end:
            self._over(result=end.value)
        except (StreamlogError, OSError) as error:
            self._over(error=error)
        else:
            if waits_for is None:
                asyncio.get_running_loop().call_soon(self.go_on)
            else:
                waits_for.add_done_callback(self.go_on)

    def stop(self, reason: StreamlogError) -> None:
        """It does not go on; whoever waits is told the reason."""
        self._stopped = True
        self._steps.close()
        if not self._answer.done():
            self._answer.set_exception(reason)

    def _over(self, *, result: Any = None, error: Exception | None = None) -> None:  # noqa: ANN401 - of the generator
        self._stopped = True
        if not self._answer.done():  # Or nobody waits for it any more.
            if error is None:
                self._answer.set_result(result)
            else:
                self._answer.set_exception(error)
        self._on_over()
