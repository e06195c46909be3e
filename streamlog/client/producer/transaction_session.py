"""TransactionSession sends the requests of `TransactionMachine`; Transaction is the caller's block.

The session is the shell of `transaction_machine`. `run` is a task of the producer, so a transaction
whose block was left by an error or a cancellation is aborted even if the caller's task has ended;
leaving the block waits for the abort up to `ABORT_WAIT_MS`. All requests of a transactional id are
sent one after the other on one connection. The sender sends the records; it asks
`TransactionMachine` for each partition whether the transaction may write to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self

from streamlog import repeated
from streamlog.client.cluster import Cluster
from streamlog.client.metrics.client_metrics import timed
from streamlog.client.offset_metadata import GroupMetadata, Offsets
from streamlog.client.producer.accumulator import Accumulator
from streamlog.client.producer.sender import Receipt
from streamlog.client.producer.transaction_machine import (
    AskCoordinator,
    Find,
    TransactionCoordinatorNode,
    TransactionMachine,
    TransactionPhase,
    WaitUntil,
)
from streamlog.errors import StreamlogError, TransactionAborted, UsageError
from streamlog.metrics.sampled import Sampled
from streamlog.protocol.api_table import TRANSACTION_FEATURE, TRANSACTIONS_V2, api_of
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest
from streamlog.protocol.schema import Message

ABORT_WAIT_MS: Final = 5_000
"""How long leaving a transaction by an error waits for the abort, which then continues in the
background."""
RESUMING_VERSION: Final = 3
"""The first version of InitProducerId that gives a producer its next epoch (KIP-360)."""

log = repeated.logger(__name__)


class TransactionSession:
    """One producer's requests to the coordinator of its transactional id."""

    def __init__(
        self,
        cluster: Cluster,
        transactions: TransactionMachine,
        accumulator: Accumulator[Receipt],
        *,
        tell: Callable[[], None],
        times: Mapping[str, Sampled],
    ) -> None:
        """Run `transactions`; call `tell` when the sender may be able to send more.

        `times` has the times of the owner's steps in ms, by `ProducerMetrics.txn_times`.
        """
        self._times = times
        self._cluster = cluster
        self._transactions = transactions
        self._accumulator = accumulator
        self._tell = tell
        self._nodes: dict[TransactionCoordinatorNode, int] = {}
        self._look = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_taken = False
        self._is_troubled = False

    # ---- the task ----

    def look(self) -> None:
        """Wake the task: a request may be due."""
        self._look.set()

    async def run(self) -> None:
        """Send the requests that are due until the producer is closed or fenced."""
        transactions = self._transactions
        while transactions.phase is not TransactionPhase.DEAD:
            try:
                await self._step()
            except StreamlogError as error:
                transactions.on_error(error, self._cluster.clock.now_ms())
            self._on_change()

    def end(self, error: StreamlogError) -> None:
        """End the transactions with `error`: no further request is sent."""
        self._transactions.end(error)
        self._on_change()

    async def _step(self) -> None:
        # Before `next`: a change after it ends the wait below at once.
        self._look.clear()
        now_ms = self._cluster.clock.now_ms()
        match self._transactions.next(now_ms, is_writing=self._accumulator.has_outstanding):
            case Find(coordinator):
                node_id = await self._cluster.coordinator(
                    coordinator.name, key_type=coordinator.role.value
                )
                self._nodes[coordinator] = node_id
                self._transactions.on_found(coordinator)
            case AskCoordinator(coordinator, request):
                await self._ask(self._nodes[coordinator], request)
            case WaitUntil(until_ms):
                self._on_change()
                await self._wait(None if until_ms is None else until_ms - now_ms)

    async def _ask(self, node_id: int, request: Message) -> None:
        transactions, api = self._transactions, api_of(type(request))
        identity = transactions.identity
        if isinstance(request, InitProducerIdRequest):
            # Between transactions, so that none is begun by the one protocol and ended by the
            # other.
            level = await self._cluster.feature(node_id, TRANSACTION_FEATURE)
            transactions.is_v2 = level >= TRANSACTIONS_V2
        resumes = isinstance(request, InitProducerIdRequest) and identity is not None
        if resumes and not await self._cluster.speaks(node_id, api.key, RESUMING_VERSION):
            transactions.on_unresumable()
            return
        response = await self._cluster.call(
            node_id, request, api.response, version_max=transactions.version_max(type(request))
        )
        transactions.on_answer(response, self._cluster.clock.now_ms())
        if transactions.identity is not None and transactions.identity != identity:
            self._accumulator.reset_identity(transactions.identity)

    async def _wait(self, for_ms: int | None) -> None:
        try:
            async with asyncio.timeout(None if for_ms is None else max(for_ms, 0) / 1000):
                await self._look.wait()
        except TimeoutError:
            return

    def _on_change(self) -> None:
        trouble = self._transactions.trouble
        if trouble is not None and not self._is_troubled:
            log.info("%s: the request will be retried: %s", self._transactions, trouble)
        self._is_troubled = trouble is not None
        self._changed.set()
        self._tell()

    # ---- the owner ----

    async def opened(self) -> None:
        """Wait for the producer id.

        Raises:
            StreamlogError: the coordinator refused it, or did not answer in time.
        """
        with self._timed("init"):
            await self._until(lambda: self._transactions.phase is not TransactionPhase.BEGINNING)
        self._raise_if_dead()

    async def begin(self) -> None:
        """Begin a transaction, once the previous one has ended.

        Raises:
            UsageError: a transaction is open.
            ProducerFenced, StreamlogError: this producer has ended.
        """
        if self._is_taken:
            raise UsageError("the producer has an open transaction: leave its block first")
        self._is_taken = True
        try:
            with self._timed("begin"):
                await self._until(
                    lambda: (
                        self._transactions.phase in {TransactionPhase.READY, TransactionPhase.DEAD}
                    )
                )
            self._raise_if_dead()
            self._transactions.begin()
        except BaseException:
            self._is_taken = False
            raise

    async def commit(self) -> None:
        """Wait until all records are written, then commit and wait for the confirmation.

        Raises:
            TransactionAborted: a record or an offset was lost; the transaction is aborted.
            ProducerFenced: another producer has taken over; the transaction is aborted, unless the
                error is `in_doubt`: then the commit was requested before, with unknown outcome.
            RequestTimedOut: the outcome of the commit is unknown; this producer has ended.
        """
        with self._timed("commit"):
            await self._commit()

    async def _commit(self) -> None:
        transactions = self._transactions
        try:
            transactions.commit()
            self._accumulator.close_open()
            self._wake()
            # ABORTING: a record or an offset was lost while the commit waited for the batches.
            await self._until(
                lambda: transactions.is_over or transactions.phase is TransactionPhase.ABORTING
            )
            if not transactions.is_committed:
                await self._aborted()
        except asyncio.CancelledError:
            transactions.abort()  # Does nothing if the commit was requested: that continues.
            await self._aborted()
            raise
        finally:
            self._is_taken = False
        if not transactions.is_committed:
            raise self._reason()

    async def abort(self) -> None:
        """Abort the transaction; after `ABORT_WAIT_MS` the abort continues in the background."""
        try:
            self._transactions.abort()
            with self._timed("abort"):
                await self._aborted()
        finally:
            self._is_taken = False

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit offsets in the transaction; see `Transaction.send_offsets`."""
        self.check_open()
        if not offsets:
            return
        transactions = self._transactions
        sending = transactions.send_offsets(group, offsets)
        self._wake()
        with self._timed("send-offsets"):
            await self._until(
                lambda: sending.is_done or transactions.is_lost or transactions.is_over
            )
        if not sending.is_done:
            raise self._reason()

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._transactions.phase is TransactionPhase.OPEN

    def check_open(self) -> None:
        """Check that a transaction is open.

        Raises:
            UsageError: no transaction is open.
            TransactionAborted: the transaction has lost a record or an offset.
            ProducerFenced, StreamlogError: this producer has ended.
        """
        if self.is_open:
            return
        self.check_whole()
        raise UsageError(
            "a producer with a transactional_id writes only in transactions: use "
            "`async with producer.transaction():`"
        )

    def check_whole(self) -> None:
        """Check that the open transaction, if any, has lost nothing.

        Raises:
            TransactionAborted: it has lost a record or an offset.
            ProducerFenced, StreamlogError: this producer has ended.
        """
        if self._transactions.is_lost:
            raise self._reason()

    def _reason(self) -> StreamlogError:
        """Return the error that says why the transaction is not committed."""
        failure = self._transactions.failure
        if self._transactions.phase is TransactionPhase.DEAD and failure is not None:
            return failure
        what = f"the transaction of {self._transactions} is aborted"
        aborted = TransactionAborted(what if failure is None else f"{what}: {failure}")
        aborted.__cause__ = failure
        return aborted

    def _raise_if_dead(self) -> None:
        if self._transactions.phase is TransactionPhase.DEAD:
            raise self._reason()

    async def _aborted(self) -> None:
        """Wait for the end of the transaction, `ABORT_WAIT_MS` at most."""
        self._wake()
        try:
            async with asyncio.timeout(ABORT_WAIT_MS / 1000):
                await self._until(lambda: self._transactions.is_over)
        except TimeoutError:
            log.warning(
                "%s: the abort takes more than %d ms and continues in the background",
                self._transactions, ABORT_WAIT_MS,
            )  # fmt: skip

    async def _until(self, is_so: Callable[[], bool]) -> None:
        # No other task runs between the check and `clear`, so no change is missed.
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def _timed(self, step: str) -> AbstractContextManager[None]:
        return timed(self._times[step], self._cluster.clock)

    def _wake(self) -> None:
        self._look.set()
        self._tell()


class Transaction:
    """A block whose records and offsets are committed together when it ends, or not at all.

    `Producer.transaction` returns it. An error or a cancellation that leaves the block aborts the
    transaction, and so does the loss of any record or offset in it (KIP-98).
    """

    def __init__(self, session: TransactionSession) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        """Begin the transaction, once the previous one has ended.

        Raises:
            UsageError: the producer has another open transaction.
            ProducerFenced, StreamlogError: the producer has ended.
        """
        await self._session.begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit the transaction; abort it if an error leaves the block.

        Raises:
            TransactionAborted: a record or an offset was lost; `__cause__` is the first error.
            ProducerFenced: another producer has taken over.
            RequestTimedOut: the outcome of the commit is unknown.
        """
        if exc is None:
            await self._session.commit()
        else:
            await self._session.abort()

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a group's offsets in this transaction (KIP-98, KIP-447).

        Args:
            offsets: partition to the offset of the next record to read, with metadata if wanted.
            group: `Consumer.group_metadata()` of the consumer that has read up to there.

        Raises:
            TransactionAborted: the group refused, for example since that consumer is no member of
                its present generation.
            UsageError: no transaction is open.
        """
        await self._session.send_offsets(offsets, group)
