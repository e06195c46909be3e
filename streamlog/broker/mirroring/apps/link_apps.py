"""LinkApps: finds the topics of a link's apps, and takes marks, for the runner of the link."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from streamlog.broker.mirroring.apps.app_marks import AppMarks, SourceEnds, Where
from streamlog.broker.mirroring.link_notices import listed
from streamlog.broker.mirroring.link_plan import APP_LOGS, TRANSACTION_LOG, own_topics
from streamlog.broker.mirroring.source_groups import SourceGroups
from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.errors import CorruptData, LogError, StreamlogError
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.mirror_messages import MarkAppsRequest, MarkAppsResponse
from streamlog.protocol.messages.produce_and_fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from streamlog.protocol.schema import id_text

if TYPE_CHECKING:
    from streamlog.broker.mirroring.link_notices import LinkNotices
    from streamlog.broker.mirroring.readable_ends import ReadableEnds
    from streamlog.broker.mirroring.source_cluster import SourceCluster
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

LATEST = -1
CONSUMER = -1
UNCOMMITTED, COMMITTED = 0, 1
LEADER_MS = 10_000
"""How long to wait for a leader of the source."""
MEANING = "until then, `promote --now --app` finds no consistent cut"
"""What the notices of this module end with."""


class LinkApps:
    """The apps of a link.

    Args:
        link_id: the link.
        ids: their ids; a link may have none.
        source: the cluster that it leads to.
        ends: how far the mirrors here are.
        ask: sends a request to the active controller.
        clock: the time.
        notices: get what can't be found, and what keeps marks from being taken.
    """

    def __init__(
        self,
        link_id: bytes,
        ids: Sequence[str],
        source: SourceCluster,
        *,
        ends: ReadableEnds,
        ask: Callable[[Message], Awaitable[Message]],
        clock: Clock,
        notices: LinkNotices,
    ) -> None:
        self._link_id = link_id
        self._ids = ids
        self._source = source
        self._ends = ends
        self._ask = ask
        self._clock = clock
        self._notices = notices
        self._marks = AppMarks(clock.now_ms())

    @property
    def app_logs(self) -> str:
        """The prefix of the names of the mirrors of the source's logs; empty without apps."""
        return f"{MIRRORED_LOGS}{id_text(self._link_id)}." if self._ids else ""

    async def topics(self) -> set[str]:
        """Return the topics of the source that the apps own or read."""
        if not self._ids:
            return set()
        topics = self._source.topics
        found = own_topics(self._ids, topics)
        names = {topic.topic_id: name for name, topic in topics.items()}
        try:
            for node_id in self._source.broker_ids:
                groups = SourceGroups(node_id, self._source)
                try:
                    positions = await groups.positions(self._ids, names)
                finally:
                    await groups.close()
                found |= {topic for each in positions.values() for topic, _ in each}
        except LogError as error:
            self._notices.note("apps", f"the topics that apps read are not known: {error}")
        else:
            self._notices.note("apps", "")
        return found

    def note_hidden(self, names: Collection[str]) -> None:
        """Note the logs that the source does not show to the link's user."""
        self._notices.note(
            "app logs",
            f"the source does not show {listed(names)}: the link's user needs READ there; {MEANING}"
            if names
            else "",
        )

    async def mark(self, mirrors: Mapping[str, str]) -> None:
        """Take a mark if one is due, and as far as the mirrors are.

        Args:
            mirrors: the source's topics, by their mirrors here.
        """
        # A source without the logs has no transactions yet; if it hides them, the runner says so.
        if not self._ids or not {*APP_LOGS} <= {*mirrors.values()} & self._source.topics.keys():
            return
        try:
            await self._look(mirrors)
        except (StreamlogError, OSError) as error:
            self._notices.note("marks", f"how far apps are copied is not known: {error}; {MEANING}")
        else:
            self._notices.note("marks", "")

    async def _look(self, mirrors: Mapping[str, str]) -> None:
        for leader, partitions in self._ends.far(mirrors).items():
            await self._ends.ask(leader, partitions)
        here: dict[Where, int] = {
            (mirrors[name], number): each.end_offset
            for (name, number), each in self._ends.known(mirrors).items()
        }
        topics = {each for each in mirrors.values() if each in self._source.topics}
        marks, now_ms = self._marks, self._clock.now_ms()
        if marks.is_due(here, now_ms):
            look = await look_at(self._source, topics - {TRANSACTION_LOG})
            marks.on_look(look, now_ms)
        mark = marks.take(here, topics, now_ms)
        if mark:
            answer = await self._ask(MarkAppsRequest(link_id=self._link_id, partitions=mark))
            if isinstance(answer, MarkAppsResponse) and answer.error_code:
                raise error_for(answer.error_code, answer.error_message or "the mark is refused")


async def look_at(source: SourceCluster, topics: Collection[str]) -> SourceEnds:
    """Return where partitions of a source end, and where its log of transactions does.

    Raises:
        StreamlogError: a leader does not answer, or refuses; a part of the ends would be of no use.
    """
    stable = await _ends(source, topics, COMMITTED)
    before = await _ends(source, [TRANSACTION_LOG], UNCOMMITTED)
    ends = await _ends(source, topics, UNCOMMITTED)
    decided = await _ends(source, [TRANSACTION_LOG], UNCOMMITTED)
    return SourceEnds(
        stable=stable,
        decided_before={number: end for (_, number), end in before.items()},
        ends=ends,
        decided={number: end for (_, number), end in decided.items()},
    )


async def _ends(source: SourceCluster, topics: Collection[str], isolation: int) -> dict[Where, int]:
    leaders: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for number, leader in enumerate(source.topics[topic].leaders):
            if leader.node_id < 0:
                raise CorruptData(f"{topic}-{number} has no leader at the source")
            leaders.setdefault(leader.node_id, {}).setdefault(topic, []).append(number)
    found: dict[Where, int] = {}
    for node_id, wanted in leaders.items():
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=isolation,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=number, timestamp=LATEST)
                        for number in numbers
                    ],
                )
                for topic, numbers in wanted.items()
            ],
        )
        transport = await source.connect(node_id)
        try:
            answer = await transport.call(request, timeout_ms=LEADER_MS)
        finally:
            await transport.close()
        if not isinstance(answer, ListOffsetsResponse):
            raise CorruptData(f"broker {node_id} of the source answered {type(answer).__name__}")
        found.update(_found(answer))
    return found


def _found(answer: ListOffsetsResponse) -> Iterator[tuple[Where, int]]:
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error_code:
                about = f"the source does not tell where {topic.name}-{each.partition_index} ends"
                raise error_for(each.error_code, about)
            yield (topic.name, each.partition_index), each.offset
