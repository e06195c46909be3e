"""ReplicaFetcher: fetches from one leader broker for the followers here.

A request names the partitions that fetch from another position than before, and the next one is
sent after its response. The leader remembers the others (`replica_sessions`, KIP-227), and a
response has only partitions with news: an idle partition costs nothing. The fetched records are
synced in between: the next fetch offset confirms to the leader that they are on this disk. A leader
without news holds the request for a while.

Producers that wait for all replicas wait for two turns of this broker (`Turn`): one takes the
answer, appends, and begins the sync; the next one, after the sync, sends the next request. A task
(`run`) only connects, and begins again after failures.

Rules of this module: every follower gets the answer to its fetch, or learns that there is none.
While a session lasts, a fetch without an answer is open. A broker that can't be reached is tried
again, at growing intervals, as long as it leads. A request to a broker that was started again is
given up when the new registration arrives: a broker that loses power closes no connection.
Throttled replicas are left out of requests while their quota is exceeded (KIP-73).

Not done here: what a follower fetches, and what it makes of an answer (`replica`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from streamlog import repeated
from streamlog.broker.replication.follower_replica import parse_fetched_batches
from streamlog.broker.replication.partition_replica import LeaderContact
from streamlog.broker.replication.replica_sessions import Key, LeaderSession, wait_ms_max
from streamlog.broker.replication.replica_state import Diverging, OutstandingFetch
from streamlog.errors import ConnectionLost, RequestTimedOut, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchingReplica,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from streamlog.protocol.schema import one_buffer

if TYPE_CHECKING:
    from streamlog.broker.config.cluster import ReplicationConfig
    from streamlog.broker.replication.partition_replica import PartitionReplica
    from streamlog.broker.replication.replication_quota import ReplicationQuota
    from streamlog.broker.turn import Turn
    from streamlog.clock import Clock
    from streamlog.transport.client_connection import Outcome, PromptAnswer, PromptTransport

RETRY_S = 0.05
"""The pause after a first failure, in seconds; it doubles with each further one."""
RETRY_S_MAX = 1.0
THROTTLE_S_MAX = 1.0
"""The longest pause of a throttled replica, in seconds: the quota may change meanwhile."""

IDLE_WAITS = 4
"""How much longer a leader may hold a request if the last response had no news."""
LATE_S = 0.1
"""The pause in seconds before a request that is due for too long is given up: after a stop of this
process its timers may be due before it has read its sockets."""

Connect = Callable[[int], Awaitable["PromptTransport"]]
"""Opens a connection to a broker. Raises StreamlogError if it can't be reached."""

Fetches: TypeAlias = "dict[Key, tuple[PartitionReplica, OutstandingFetch]]"

_log = repeated.logger(__name__)


class _OpenRequest:
    """The request that a leader has not answered, which is given up if that takes too long."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._answer: PromptAnswer | None = None
        self._overdue: PromptAnswer | None = None
        """The answer if it was overdue at the last look."""
        self._asked_s = 0.0
        """When the newest request was sent, by the event loop's clock."""
        self._alarm: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return self._answer is not None

    def begin(self, answer: PromptAnswer) -> None:
        """Note that a request was sent."""
        loop = asyncio.get_running_loop()
        self._answer, self._asked_s = answer, loop.time()
        # One timer for many requests: to set one for each would cost as much as to send it.
        if self._alarm is None:
            self._alarm = loop.call_later(self._timeout_ms / 1000, self._look)

    def end(self) -> None:
        """Note that there is an outcome."""
        self._answer = self._overdue = None

    def give_up(self, error: StreamlogError) -> None:
        """Make this error the outcome, if a request is open."""
        if self._answer is not None:
            self._answer.pass_on(error)

    def cancel(self) -> None:
        """Wait no more: the outcome does not matter."""
        if self._answer is not None:
            self._answer.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        self.end()

    def _look(self) -> None:
        """Give the request up if it is overdue, at the second look."""
        self._alarm = None
        if self._answer is None:
            return  # The next request sets the timer again.
        loop = asyncio.get_running_loop()
        left_s = self._asked_s + self._timeout_ms / 1000 - loop.time()
        if left_s <= 0 and self._overdue is self._answer:
            late = f"it did not answer Fetch within {self._timeout_ms} ms: overloaded, or stopped"
            self.give_up(RequestTimedOut(late))
            return
        if left_s <= 0:
            self._overdue, left_s = self._answer, LATE_S
        self._alarm = loop.call_later(left_s, self._look)


class ReplicaFetcher:
    """Fetches from broker `leader`; the broker runs `run` as a task."""

    def __init__(
        self,
        leader: int,
        connect: Connect,
        *,
        leader_broker_epoch: int,
        config: ReplicationConfig,
        clock: Clock,
        topic_id: Callable[[str], bytes | None],
        quota: ReplicationQuota,
        turn: Turn,
    ) -> None:
        """Make a fetcher, which fetches nothing before `run`.

        Args:
            leader: the broker to fetch from.
            connect: opens a connection to a broker.
            leader_broker_epoch: the epoch of that broker's registration.
            config: sizes and time-outs of fetches.
            clock: the time, for the quota.
            topic_id: the id of a topic; None if the topic was deleted.
            quota: the quota of throttled replicas, which all fetchers of this broker share.
            turn: the broker's turns, in which requests are sent and answered.
        """
        self.leader = leader
        self._leader_broker_epoch = leader_broker_epoch
        self._connect = connect
        self._config = config
        self._clock = clock
        self._topic_id = topic_id
        self._quota = quota
        self._turn = turn
        self._candidates: set[PartitionReplica] = set()
        self._session: LeaderSession[PartitionReplica] = LeaderSession()
        self._contact = LeaderContact(clock.now_ms())
        self._follower = (-1, -1)
        """This broker, and the epoch of its registration, in the newest fetch."""
        self._answered: list[PartitionReplica] = []
        """The replicas that the last response was for, as far as they may wait for their sync."""
        self._pauses_s: WeakKeyDictionary[PartitionReplica, float] = WeakKeyDictionary()
        """The next pause of replicas whose last fetch failed, in seconds."""
        self._trouble: str | None = None
        """Why the last request failed, as logged; None if it succeeded."""
        self._timers: dict[PartitionReplica, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()
        """Wakes `run`."""
        self._transport: PromptTransport | None = None
        self._is_going = False
        """Whether turns send requests; if not, `run` first has to connect, or to wait."""
        self._is_scheduled = False
        """Whether a look for the next request is left to the end of this turn."""
        self._is_idle = False
        """Whether the last response had no news."""
        self._waits_ms = tuple(request_wait_ms(config, is_idle=each) for each in (False, True))
        """How long the leader may hold a request, while there is news and while there is none."""
        self._open = _OpenRequest(config.socket_timeout_ms)
        self._has_failed = self._is_lost = False
        """Whether the last request has failed, and whether the connection is of no more use."""
        self._pause_s = RETRY_S
        """The pause after the next failure."""
        self._fault: Exception | None = None
        """An error that no peer and no disk explains, which ends the broker."""

    def on_registered(self, leader_broker_epoch: int) -> None:
        """Give up the open request if the leader has registered again, after a restart."""
        if leader_broker_epoch == self._leader_broker_epoch:
            return
        self._leader_broker_epoch = leader_broker_epoch
        self._open.give_up(ConnectionLost("the broker was restarted and has lost the request"))

    def add(self, replica: PartitionReplica) -> None:
        """Fetch for a replica, if it has something to fetch."""
        self._candidates.add(replica)
        self._go_on_soon()

    def forget(self, replica: PartitionReplica) -> None:
        """Fetch no more for a replica that has another leader, or has ended."""
        self._candidates.discard(replica)
        self._session.forget(replica)
        self._go_on_soon()

    def look_again(self) -> None:
        """Check again what to fetch: a replica whose sync delayed the others may have left."""
        self._go_on_soon()

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._fault is not None:
                    raise self._fault
                if self._has_failed:
                    await self._recover()
                elif self._has_work:
                    await self._begin()
        finally:
            self._stop()
            self._end_session()  # After a cancellation, too.
            await self._disconnect()

    @property
    def _has_work(self) -> bool:
        """Whether there may be something to ask for."""
        session = self._session
        return bool(self._candidates) or session.has_open_fetches or session.has_gone

    async def _begin(self) -> None:
        """Connect, or authenticate again; from then on turns send requests."""
        try:
            if self._transport is None:
                self._transport = await self._connect(self.leader)
            await self._transport.renew(self._config.socket_timeout_ms)
        except (StreamlogError, OSError) as error:
            self._log_trouble(str(error))
            self._fail(is_lost=True)
            return
        self._is_going = True
        self._go_on()

    async def _recover(self) -> None:
        """Begin another session after a pause, with another connection if this one is lost."""
        if self._is_lost:
            await self._disconnect()
        self._end_session()
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        self._has_failed = self._is_lost = False
        self._wake.set()

    def _fail(self, *, is_lost: bool) -> None:
        """Send no more requests until `run` has recovered."""
        self._is_going = False
        self._has_failed, self._is_lost = True, is_lost
        self._wake.set()

    def _stop(self) -> None:
        """Cancel what would run later."""
        self._is_going = False
        self._open.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # ---- turns ----

    def _go_on_soon(self) -> None:
        """Send the next request at the end of this turn."""
        if not self._is_going:
            self._wake.set()
        elif not self._open and not self._is_scheduled:
            self._is_scheduled = True
            self._turn.later(self._go_on)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step of a turn, whose caller can do nothing about an error in it."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised again by `run`, which ends the broker
            self._fault, self._is_going = error, False
            self._wake.set()

    def _go_on(self) -> None:
        self._is_scheduled = False
        self._guarded(self._ask)

    def _ask(self) -> None:
        """Send the next request, if there is one to send now."""
        transport = self._transport
        if transport is None or not self._is_going or self._open:
            return
        if not self._has_work or self._is_syncing():
            return
        if transport.needs_renewal:
            self._is_going = False
            self._wake.set()
            return
        asked = self._next()
        if asked:
            self._is_idle = False
        session = self._session
        if asked or session.has_open_fetches or session.has_gone:
            self._send(transport, self._request(asked, session.name(asked)))

    def _send(self, transport: PromptTransport, request: FetchRequest) -> None:
        try:
            self._open.begin(transport.begin(request, self._on_outcome))
        except StreamlogError as error:
            self._on_outcome(error)

    def _on_outcome(self, outcome: Outcome) -> None:
        """Take the outcome of the open request, in a turn of its own."""
        self._open.end()
        with self._turn:
            self._guarded(partial(self._take, outcome))

    def _is_syncing(self) -> bool:
        """Whether a replica has records of the last response that are not on disk yet.

        One request is open at a time. 1. Replicas A and B got records; A is synced. 2. A request
        for A alone could wait at the leader for its full maximum time. 3. B, synced a moment later,
        could confirm its records only after that.
        """
        # A list of other replicas would keep their logs in memory.
        self._answered = [each for each in self._answered if each.is_syncing_for(self.leader)]
        return bool(self._answered)

    def _end_session(self) -> None:
        """Begin another session with the next request, which repeats all open fetches."""
        for replica, fetch in self._session.end().values():
            # A fetch that stays open is never followed by another.
            if replica.machine.follower is not None:
                replica.machine.follower.on_failed(fetch.fetch_id)
            self._candidates.add(replica)

    def _add_later(self, replica: PartitionReplica) -> None:
        """Fetch for a replica after its pause, which doubles with each failure in a row."""
        pause_s = self._pauses_s.get(replica, RETRY_S)
        self._pauses_s[replica] = min(pause_s * 2, RETRY_S_MAX)
        self._add_in(replica, pause_s)

    def _add_in(self, replica: PartitionReplica, pause_s: float) -> None:
        # One timer per replica: the newest pause counts.
        known = self._timers.pop(replica, None)
        if known is not None:
            known.cancel()

        def add() -> None:
            del self._timers[replica]
            self.add(replica)

        self._timers[replica] = asyncio.get_running_loop().call_later(pause_s, add)

    def _next(self) -> Fetches:
        """Take the next fetch of each candidate that has one and is not throttled."""
        asked: Fetches = {}
        candidates, self._candidates = self._candidates, set()
        held_s = 0.0
        if self._quota.is_bounded:
            held_ms = self._quota.exceeded_for_ms(self._clock.now_ms())
            held_s = min(held_ms / 1000, THROTTLE_S_MAX)
        # Sorted, because the order of a set of objects differs from run to run.
        several = len(candidates) > 1
        for replica in sorted(candidates, key=_topic_partition) if several else candidates:
            topic_id = self._topic_id(replica.topic)
            follower = replica.machine.follower
            if topic_id is None or follower is None or follower.leader != self.leader:
                continue
            if held_s and replica.is_throttled_follower:
                self._add_in(replica, held_s)
                continue
            fetch = replica.next_fetch()
            if fetch is not None:
                asked[topic_id, replica.index] = (replica, fetch)
                self._follower = fetch.fetch.broker, fetch.fetch.broker_epoch
        return asked

    def _take(self, outcome: Outcome) -> None:
        """Pass on the answers in a response, and send the next request."""
        if isinstance(outcome, StreamlogError):
            self._log_trouble(str(outcome))
            self._fail(is_lost=True)
            return
        if self._trouble is not None:
            self._log_trouble(None)
        session = self._session
        if not isinstance(outcome, FetchResponse) or outcome.error_code:
            self._fail(is_lost=False)
            return
        continues = session.on_response(outcome.session_id)
        self._contact.answered_ms = self._clock.now_ms()
        self._is_idle = not outcome.responses
        for topic in outcome.responses:
            self._deliver_topic(topic)
        # A leader without sessions has answered all fetches, or has lost some.
        if continues or not (session.session_id or session.has_open_fetches):
            self._pause_s = RETRY_S
            # The end of a sync that is under way makes the next request.
            if not self._is_syncing():
                self._go_on_soon()
        else:
            self._fail(is_lost=False)

    def _log_trouble(self, trouble: str | None) -> None:
        """Log once why fetches from the leader fail, and once that they succeed again."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            _log.info("fetching from broker %d succeeds again", self.leader)
        else:
            _log.info("fetching from broker %d fails: %s", self.leader, trouble)

    def _deliver_topic(self, topic: FetchableTopicResponse) -> None:
        for data in topic.partitions:
            open_fetch = self._session.take((topic.topic_id, data.partition_index))
            if open_fetch is not None:
                self._answered.append(open_fetch[0])
                self._deliver(*open_fetch, data)

    def _deliver(
        self, replica: PartitionReplica, asked: OutstandingFetch, data: PartitionData
    ) -> None:
        """Pass an answer to its follower. A failure of one log does not stop the others."""
        try:
            continues = self._apply_answer(replica, asked, data)
        except StreamlogError as error:
            _log.error(
                "%s-%d can't append what broker %d sent: %s",
                *(replica.topic, replica.index, self.leader, error),
            )
            continues = False
        if continues:
            self._pauses_s.pop(replica, None)
        else:
            replica.lose_contact()
            self._add_later(replica)

    def _apply_answer(
        self, replica: PartitionReplica, asked: OutstandingFetch, data: PartitionData
    ) -> bool:
        """Pass an answer to its follower; return whether the follower may fetch at once."""
        follower = replica.machine.follower
        if follower is None:
            return True
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Without effects the logs do not explain the error: fetch again after a pause.
            effects = follower.on_out_of_range(asked.fetch_id, data.log_start_offset)
            replica.append_fetched(effects, b"", self._contact)
            return bool(effects)
        if data.error_code:
            follower.on_failed(asked.fetch_id)
            if data.error_code == ErrorCode.CORRUPT_MESSAGE:
                _log.warning(
                    "%s-%d is not copied on: the log of its leader, broker %d, is damaged",
                    *(replica.topic, replica.index, self.leader),
                )
            return False
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            found = Diverging(diverging.epoch, diverging.end_offset)
            effects = follower.on_diverging(asked.fetch_id, found)
            replica.append_fetched(effects, b"", self._contact)
            return True
        return self._append(replica, asked, data)

    def _append(
        self, replica: PartitionReplica, asked: OutstandingFetch, data: PartitionData
    ) -> bool:
        follower = replica.machine.follower
        if follower is None:
            return True
        try:
            came = parse_fetched_batches(
                one_buffer(data.records or b""),
                asked.fetch.offset,
                is_void=replica.is_empty or asked.fetch.offset <= data.log_start_offset,
            )
        except StreamlogError:
            # Otherwise the fetch would stay open, and the partition would never be fetched again.
            follower.on_failed(asked.fetch_id)
            raise
        records, effects = (
            came.records,
            follower.on_fetched(
                asked.fetch_id,
                end_offset=came.end_offset,
                high_watermark=data.high_watermark,
                log_start=data.log_start_offset,
                begin_offset=came.begin_offset,
            ),
        )
        if self._quota.is_bounded and replica.is_throttled_follower:
            self._quota.record(len(records), self._contact.answered_ms)
        replica.append_fetched(effects, records, self._contact)
        return True

    def _request(self, asked: Fetches, forgotten: list[Key]) -> FetchRequest:
        broker, broker_epoch = self._follower
        return FetchRequest(
            replica_id=broker,
            replica_state=FetchingReplica(replica_id=broker, replica_epoch=broker_epoch),
            # A request that only ends fetches has nothing to wait for.
            max_wait_ms=self._waits_ms[self._is_idle] if self._session.has_open_fetches else 0,
            min_bytes=1,
            max_bytes=self._config.fetch_response_max_bytes,
            session_id=self._session.session_id,
            session_epoch=self._session.epoch,
            topics=_named(asked, self._config.fetch_max_bytes),
            forgotten_topics_data=_forgotten(forgotten) if forgotten else [],
        )

    async def _disconnect(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()


def request_wait_ms(config: ReplicationConfig, *, is_idle: bool) -> int:
    """Return how long the leader may hold a request.

    What it learns meanwhile it tells soon (`apis/replica_fetch`), so that a longer wait costs idle
    brokers less, and nothing else.
    """
    wait_ms = config.fetch_wait_max_ms * (IDLE_WAITS if is_idle else 1)
    return min(wait_ms, wait_ms_max(config.lag_time_max_ms, config.socket_timeout_ms))


def _topic_partition(replica: PartitionReplica) -> tuple[str, int]:
    return replica.topic, replica.index


def _named(asked: Fetches, max_bytes: int) -> list[FetchTopic]:
    topics: dict[bytes, FetchTopic] = {}
    for (topic_id, index), (replica, outstanding) in asked.items():
        fetch = outstanding.fetch
        topic = topics.setdefault(
            topic_id, FetchTopic(topic=replica.topic, topic_id=topic_id, partitions=[])
        )
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=fetch.leader_epoch,
                fetch_offset=fetch.offset,
                last_fetched_epoch=fetch.last_epoch,
                log_start_offset=fetch.log_start,
                fetch_number=fetch.number,
                partition_max_bytes=max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(keys: list[Key]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
    return list(topics.values())
