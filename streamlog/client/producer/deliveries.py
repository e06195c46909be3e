"""RecordDelivery: the future of one record that was sent alone; a run of them shares what is known.

Most programs never look at what became of a single record: they drop the delivery, and `flush` says
whether all were written. So a delivery is only a place in a run. The run has the outcome of a whole
batch, and gives a record's when it is asked. Only what is waited for is remembered.

A delivery has the interface of `asyncio.Future`: asyncio takes anything with these methods for a
future (`asyncio.isfuture`), in `await`, `wait`, `gather`, `shield` and `wait_for`.

Rule of the file: it may be compiled. An error is never lost in silence: a run that ends with one
which no program has asked for reports it to the event loop. Not done here: which records a batch
has (`open_batches`), and what an answer means for it (`sender`).
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING

from streamlog.client.producer.open_batches import metadata_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from typing import TypeAlias

    Metadata: TypeAlias = tuple[str, int, int, int]
    Outcome: TypeAlias = Metadata | Exception

__all__ = ["DeliveryRun", "RecordDelivery"]

_CancelledError = asyncio.CancelledError
_InvalidStateError = asyncio.InvalidStateError


class DeliveryRun:
    """The outcomes of consecutive records of a batch, by row: a record's number in the run."""

    __slots__ = (
        "_base",
        "_count",
        "_rows",
        "_start",
        "_times",
        "_unheard",
        "_watchers",
        "loop",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, times: list[int], start: int) -> None:
        """`times` are the timestamps of the batch, `start` is the first record's index in it."""
        self.loop = loop
        self._times = times
        self._start = start
        self._count = 0
        self._base: Metadata | None = None
        """The place of the batch, if it was written as a whole."""
        self._rows: dict[int, Outcome] = {}
        """The outcomes of single rows, if the batch was divided, or failed."""
        self._watchers: dict[int, RecordDelivery] = {}
        self._unheard: Exception | None = None
        """An error that no program has asked for."""

    def __del__(self) -> None:
        """Report an error that would be lost."""
        if self._unheard is not None:
            self.loop.call_exception_handler(
                {"message": "Delivery exception was never retrieved", "exception": self._unheard}
            )

    def add(self) -> RecordDelivery:
        """Append a row; return its delivery."""
        row = self._count
        self._count += 1
        return RecordDelivery(self, row)

    def receipts(self) -> list[tuple[int, int, RecordDelivery]]:
        """Return a receipt for each row, with its index in the batch as first and last index."""
        rows = range(self._count)
        return [(self._start + row, self._start + row, RecordDelivery(self, row)) for row in rows]

    def deliver(self, base: Metadata) -> None:
        """Note that the batch was written there."""
        self._base = base
        watchers = self._watchers
        self._watchers = {}
        for row in sorted(watchers):
            watchers[row].wake()

    def settle(self, row: int, outcome: Outcome) -> None:
        """Note the outcome of one row."""
        self._rows[row] = outcome
        if isinstance(outcome, Exception) and self._unheard is None:
            self._unheard = outcome
        watcher = self._watchers.pop(row, None)
        if watcher is not None:
            watcher.wake()

    def is_known(self, row: int) -> bool:
        """Whether the row has an outcome."""
        return self._base is not None or row in self._rows

    def outcome(self, row: int) -> Outcome | None:
        """Return the outcome of a row; None if it has none yet."""
        found = self._rows.get(row)
        if found is None and self._base is not None:
            return metadata_of(self._base, self._start + row, self._times)
        if isinstance(found, Exception):
            self._unheard = None
        return found

    def watch(self, row: int, delivery: RecordDelivery) -> None:
        """Wake the delivery when its row has an outcome."""
        self._watchers[row] = delivery

    def unwatch(self, row: int) -> None:
        """Wake no delivery of this row."""
        self._watchers.pop(row, None)


class RecordDelivery:
    """A future of the place of one record: its topic, partition, offset and timestamp."""

    __slots__ = (
        "_asyncio_future_blocking", "_callbacks", "_cancel_message", "_row", "_run",
        "_was_given_up",
    )  # fmt: skip

    def __init__(self, run: DeliveryRun, row: int) -> None:
        self._run = run
        self._row = row
        self._callbacks: list[tuple[Callable[[RecordDelivery], object], Context]] | None = None
        self._cancel_message: object = None
        """`asyncio.gather` asks for it by this name."""
        self._was_given_up = False
        self._asyncio_future_blocking = False

    def __repr__(self) -> str:
        if self._was_given_up:
            return "<Delivery cancelled>"
        if not self._run.is_known(self._row):
            return "<Delivery pending>"
        # Not its outcome: an error that is only printed would count as one that was asked for.
        return "<Delivery done>"

    def done(self) -> bool:
        """Whether the record has an outcome, or `cancel` has given the delivery up."""
        return self._was_given_up or self._run.is_known(self._row)

    def cancelled(self) -> bool:
        """Whether `cancel` has given the delivery up."""
        return self._was_given_up

    def cancel(self, msg: object = None) -> bool:
        """Give the delivery up, not the record, which is sent; False if the outcome is known."""
        if self.done():
            return False
        self._was_given_up = True
        self._cancel_message = msg
        self._run.unwatch(self._row)
        self.wake()
        return True

    def result(self) -> Metadata:
        """Return where the record was written.

        Raises:
            StreamlogError: it was not written.
            CancelledError: the delivery was given up.
            InvalidStateError: it is not known yet.
        """
        if self._was_given_up:
            raise self._make_cancelled_error()
        outcome = self._run.outcome(self._row)
        if outcome is None:
            raise _InvalidStateError("Result is not set.")
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)
        return outcome

    def exception(self) -> Exception | None:
        """Return why the record was not written; None if it was.

        Raises:
            CancelledError: the delivery was given up.
            InvalidStateError: it is not known yet.
        """
        if self._was_given_up:
            raise self._make_cancelled_error()
        outcome = self._run.outcome(self._row)
        if outcome is None:
            raise _InvalidStateError("Exception is not set.")
        return outcome if isinstance(outcome, Exception) else None

    def set_result(self, result: Metadata) -> None:
        """Note where the record was written."""
        self._run.settle(self._row, result)

    def set_exception(self, exception: Exception) -> None:
        """Note why the record was not written."""
        self._run.settle(self._row, exception)

    def add_done_callback(
        self, fn: Callable[[RecordDelivery], object], *, context: Context | None = None
    ) -> None:
        """Call `fn` with this delivery, in the event loop, when it is done."""
        if self.done():
            self._run.loop.call_soon(fn, self, context=context)
            return
        if self._callbacks is None:
            self._callbacks = []
            self._run.watch(self._row, self)
        self._callbacks.append((fn, context if context is not None else copy_context()))

    def remove_done_callback(self, fn: Callable[[RecordDelivery], object]) -> int:
        """Call `fn` no more; return how often it was to be called."""
        before = self._callbacks or []
        kept = [each for each in before if each[0] != fn]
        if before:
            self._callbacks = kept
        return len(before) - len(kept)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the producer."""
        return self._run.loop

    def wake(self) -> None:
        """Call the callbacks soon."""
        callbacks, self._callbacks = self._callbacks, None
        for fn, context in callbacks or ():
            self._run.loop.call_soon(fn, self, context=context)

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        # So does a task that is cancelled while it awaits the delivery.
        message = self._cancel_message
        return _CancelledError() if message is None else _CancelledError(message)

    def __await__(self) -> DeliveryWait:
        return DeliveryWait(self)

    def __iter__(self) -> DeliveryWait:
        return DeliveryWait(self)


class DeliveryWait:
    """An `await` of a delivery."""

    __slots__ = ("_delivery", "_has_waited")

    def __init__(self, delivery: RecordDelivery) -> None:
        self._delivery = delivery
        self._has_waited = False

    def __iter__(self) -> DeliveryWait:
        return self

    def __next__(self) -> RecordDelivery:
        delivery = self._delivery
        if delivery.done():
            raise StopIteration(delivery.result())
        if self._has_waited:
            raise RuntimeError("await wasn't used with future")
        self._has_waited = True
        delivery._asyncio_future_blocking = True  # noqa: SLF001 - how tasks know a future
        return delivery
