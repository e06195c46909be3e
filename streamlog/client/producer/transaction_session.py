"""TransactionSession: carries out what `Transactions` decides; Transaction: what its owner holds.

The shell of `transactions.py`. `run` is a task of the producer, so a transaction that its owner has
left, by an error or because it was cancelled, is aborted whatever becomes of the owner: who leaves
waits for that, but not for long. All requests about a transactional id travel one behind the other
on one connection. The records themselves are the sender's, who asks `Transactions` for each
partition whether it may be written to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from streamlog import repeated
from streamlog.client.cluster import Cluster
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
from streamlog.protocol.api_table import api_of
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest
from streamlog.protocol.schema import Message

ABORT_WAIT_MS: Final = 5_000
"""So long who leaves a transaction by an error waits for the abort, which goes on without it."""
RESUMING_VERSION: Final = 3
"""Of InitProducerId: the first by which a producer can ask for its next epoch (KIP-360)."""

log = repeated.logger(__name__)


class TransactionSession:
    """One producer's dealings with the coordinator of its transactional id."""

    def __init__(
        self,
        cluster: Cluster,
        transactions: TransactionMachine,
        accumulator: Accumulator[Receipt],
        *,
        tell: Callable[[], None],
    ) -> None:
        """Tell the sender by `tell` that it may look again."""
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
        """There may be something to ask for."""
        self._look.set()

    async def run(self) -> None:
        """Ask for what is due until the producer is over."""
        transactions = self._transactions
        while transactions.phase is not TransactionPhase.DEAD:
            try:
                await self._step()
            except StreamlogError as error:
                transactions.on_error(error, self._cluster.clock.now_ms())
            self._on_change()

    def end(self, error: StreamlogError) -> None:
        """Nobody asks for anything any more."""
        self._transactions.end(error)
        self._on_change()

    async def _step(self) -> None:
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
        resumes = isinstance(request, InitProducerIdRequest) and identity is not None
        if resumes and not await self._cluster.speaks(node_id, api.key, RESUMING_VERSION):
            transactions.on_unresumable()
            return
        response = await self._cluster.call(node_id, request, api.response)
        transactions.on_answer(response, self._cluster.clock.now_ms())
        if transactions.identity is not None and transactions.identity != identity:
            self._accumulator.begin_anew(transactions.identity)

    async def _wait(self, for_ms: int | None) -> None:
        try:
            async with asyncio.timeout(None if for_ms is None else max(for_ms, 0) / 1000):
                await self._look.wait()
        except TimeoutError:
            return

    def _on_change(self) -> None:
        trouble = self._transactions.trouble
        if trouble is not None and not self._is_troubled:
            log.info("%s: will try again: %s", self._transactions, trouble)
        self._is_troubled = trouble is not None
        self._changed.set()
        self._tell()

    # ---- the owner ----

    async def opened(self) -> None:
        """Wait for the producer id.

        Raises:
            StreamlogError: there is none to be had.
        """
        await self._until(lambda: self._transactions.phase is not TransactionPhase.BEGINNING)
        self._raise_if_dead()

    async def begin(self) -> None:
        """Begin a transaction, once the last one is over.

        Raises:
            UsageError: there is one.
            ProducerFenced, StreamlogError: this producer is over.
        """
        if self._is_taken:
            raise UsageError("a producer has one transaction at a time: leave the one that is open")
        self._is_taken = True
        try:
            await self._until(
                lambda: self._transactions.phase in {TransactionPhase.READY, TransactionPhase.DEAD}
            )
            self._raise_if_dead()
            self._transactions.begin()
        except BaseException:
            self._is_taken = False
            raise

    async def commit(self) -> None:
        """Wait until everything is written, then until it counts.

        Raises:
            TransactionAborted: a record or an offset was lost, so nothing counts.
            ProducerFenced: another producer has taken over; nothing counts, unless the error is
                `in_doubt`: then the commit was asked for before, and it is not known.
            RequestTimedOut: it is not known whether it counts; this producer is over.
        """
        transactions = self._transactions
        try:
            transactions.commit()
            self._accumulator.close_open()
            self._wake()
            await self._until(
                lambda: transactions.is_over or transactions.phase is TransactionPhase.ABORTING
            )
            if not transactions.is_committed:
                await self._aborted()
        except asyncio.CancelledError:
            transactions.abort()  # Unless the commit has been asked for: then it goes on.
            await self._aborted()
            raise
        finally:
            self._is_taken = False
        if not transactions.is_committed:
            raise self._reason()

    async def abort(self) -> None:
        """Let nothing count; goes on in the background if that takes long."""
        try:
            self._transactions.abort()
            await self._aborted()
        finally:
            self._is_taken = False

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """See `Transaction.send_offsets`."""
        self.check_open()
        if not offsets:
            return
        transactions = self._transactions
        sending = transactions.send_offsets(group, offsets)
        self._wake()
        await self._until(lambda: sending.is_done or transactions.is_lost or transactions.is_over)
        if not sending.is_done:
            raise self._reason()

    def check_open(self) -> None:
        """Whether something can become part of a transaction.

        Raises:
            UsageError: none is open.
            TransactionAborted: something of it is lost already.
            ProducerFenced, StreamlogError: this producer is over.
        """
        if self._transactions.phase is TransactionPhase.OPEN:
            return
        self.check_whole()
        raise UsageError(
            "this producer has a transactional_id, so it writes in transactions: "
            "`async with producer.transaction():`"
        )

    def check_whole(self) -> None:
        """Whether nothing of the transaction is lost, if there is one.

        Raises:
            TransactionAborted: something is.
            ProducerFenced, StreamlogError: this producer is over.
        """
        if self._transactions.is_lost:
            raise self._reason()

    def _reason(self) -> StreamlogError:
        """Why the transaction does not count."""
        failure = self._transactions.failure
        if self._transactions.phase is TransactionPhase.DEAD and failure is not None:
            return failure
        what = f"nothing of the transaction of {self._transactions} counts"
        aborted = TransactionAborted(what if failure is None else f"{what}: {failure}")
        aborted.__cause__ = failure
        return aborted

    def _raise_if_dead(self) -> None:
        if self._transactions.phase is TransactionPhase.DEAD:
            raise self._reason()

    async def _aborted(self) -> None:
        """Wait for the end of the transaction, but not for long."""
        self._wake()
        try:
            async with asyncio.timeout(ABORT_WAIT_MS / 1000):
                await self._until(lambda: self._transactions.is_over)
        except TimeoutError:
            log.warning("%s: it takes long; it goes on in the background", self._transactions)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def _wake(self) -> None:
        self._look.set()
        self._tell()


class Transaction:
    """What is written within its block counts when the block ends, all of it or nothing.

    Made by `Producer.transaction`. An error that leaves the block aborts it, and so does being
    cancelled; whatever is lost of it aborts it, too.
    """

    def __init__(self, session: TransactionSession) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        """Begin it.

        Raises:
            UsageError: the producer has another one open.
            ProducerFenced, StreamlogError: the producer is over.
        """
        await self._session.begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit it, or abort it.

        Raises:
            TransactionAborted: something of it was lost; `__cause__` is what was first.
            ProducerFenced: another producer has taken over.
            RequestTimedOut: it is not known whether it counts.
        """
        if exc is None:
            await self._session.commit()
        else:
            await self._session.abort()

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit where a group goes on together with what is written.

        Args:
            offsets: the next offset to read, per partition, with metadata if there is any.
            group: the consumer that has read so far, by `Consumer.group_metadata()`.

        Raises:
            TransactionAborted: the group has gone on without that consumer, or refused.
            UsageError: the transaction is not open.
        """
        await self._session.send_offsets(offsets, group)
