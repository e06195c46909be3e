"""Fail backs between three clusters, in any order of promotions: what they cut, and what they keep.

Controllers and replicas are the shipped ones; each cluster has one broker, and a log that is a list
of records. The law needs no leader epochs: a log that follows another one keeps what both have in
common from the start on, and then is that other one.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from simulation.isr.disk import Disk, Entry
from streamlog.broker.quorum.metadata.mirror_topics import LogEra, MirrorState
from streamlog.broker.replication.mirror_reader import (
    AskCut,
    AskEnds,
    CopiedBatches,
    MirrorEffect,
    RaiseEpoch,
)
from streamlog.broker.replication.replica import Replica
from streamlog.broker.replication.replica_state import (
    NO_EPOCH,
    AppendBatches,
    Diverging,
    ReplicaLog,
    ReplicaSettings,
    ReplicaState,
    Truncate,
)
from streamlog.protocol.messages.metadata_log import LinkSetting
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterMirrorPartitionRequest,
    AlterMirrorPartitionResponse,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    CreatableMirror,
    CreateLinkRequest,
    CreateLinkResponse,
    CreateMirrorsRequest,
    CreateMirrorsResponse,
    FailBackRequest,
    FailBackResponse,
    MirrorResult,
)
from tests.broker.quorum.deciding import Deciding

SEEDS = 2_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 60
BATCH_MAX = 3


class Side:
    """A cluster of one broker, and its log of the topic."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.cluster = Deciding(cluster_id=name, seed=seed)
        self.cluster.start(1)
        self.source: Side | None = None
        self.disk = Disk()
        self.cuts: list[int] = []
        self._log = ReplicaLog(
            epochs=self.disk, start_offset=0, end_offset=0, flushed_offset=0, high_watermark=0
        )
        self.replica = Replica(
            1,
            self._log,
            brokers={1: self.cluster.metadata.brokers[1].epoch},
            settings=ReplicaSettings(lag_max_ms=1_000, min_insync=1),
            incarnation=1,
        )
        epoch = self.cluster.metadata.brokers[1].epoch
        self.replica.on_registered(epoch, epoch)

    @property
    def eras(self) -> tuple[LogEra, ...]:
        """What a link finds here."""
        mirror = self.cluster.metadata.mirrors.get(self.cluster.topic_id("t"))
        return () if mirror is None else mirror.eras

    def lead(self) -> None:
        """Tell the replica what the controller has decided."""
        partition = self.cluster.partition()
        mirror = self.cluster.metadata.mirrors.get(self.cluster.topic_id("t"))
        state = ReplicaState(
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            last_unclean_epoch=partition.last_unclean_epoch,
            mirror_of=None if mirror is None else mirror.mirror_of,
        )
        self.replica.on_metadata(state, metadata_offset=self.cluster.metadata.offset, now_ms=0)

    def produce(self, sequence: int) -> None:
        """Append a record of a producer."""
        leader = self.replica.leader
        assert leader is not None
        self._append((Entry(leader.epoch, ord(self.name), sequence),))

    def follow(self, source: Side, *, is_first: bool = False) -> MirrorResult:
        """Create the mirror, or let the topic fail back."""
        link = f"to-{source.name}"
        known = self.cluster.metadata.link(link)
        if known is None:
            setting = LinkSetting(name="bootstrap.servers", value=f"{source.name}:9092")
            request = CreateLinkRequest(
                name=link, source_cluster_id=source.name, settings=[setting]
            )
            assert self.cluster.ask(request, CreateLinkResponse).error_code == 0
            known = self.cluster.metadata.link(link)
        assert known is not None
        asked = CreatableMirror(
            name="t",
            source_topic="t",
            source_topic_id=source.cluster.topic_id("t"),
            num_partitions=1,
            eras=[each.field() for each in source.eras],
        )
        if is_first:
            created = CreateMirrorsRequest(link_id=known.link_id, topics=[asked])
            (result,) = self.cluster.ask(created, CreateMirrorsResponse).topics
        else:
            back = FailBackRequest(link=link, topics=[asked])
            (result,) = self.cluster.ask(back, FailBackResponse).topics
        if not result.error_code:
            self.source = source
            self.lead()
        return result

    def promote(self) -> None:
        """Promote the topic at once."""
        asked = AlterableMirror(name="t", state=MirrorState.PROMOTED)
        (result,) = self.cluster.ask(
            AlterMirrorsRequest(topics=[asked]), AlterMirrorsResponse
        ).topics
        assert result.error_code == 0, result.error_message
        self.source = None
        self.lead()

    def step(self) -> None:
        """Fetch from the source once."""
        reader, source = self.replica.mirror, self.source
        assert reader is not None
        assert source is not None
        fetch = reader.next_fetch()
        assert fetch is not None, reader.stopped
        answer = source.serve(fetch.offset, fetch.last_epoch)
        if answer is None:
            self._perform(reader.on_out_of_range(fetch.number))
        elif isinstance(answer, Diverging):
            self._perform(reader.on_diverging(fetch.number, answer))
        else:
            newest = max((each.epoch for each in answer), default=NO_EPOCH)
            end = self._log.end_offset + len(answer)
            came = CopiedBatches(records=b"", end_offset=end, last_epoch=newest)
            mark = source.disk.end
            effects = reader.on_fetched(fetch.number, came, high_watermark=mark, log_start=0)
            self._perform(effects, answer)

    def serve(self, offset: int, last_epoch: int) -> tuple[Entry, ...] | Diverging | None:
        """Answer as a broker does; None is OFFSET_OUT_OF_RANGE."""
        if last_epoch != NO_EPOCH:
            leader = self.replica.leader
            is_mirror = self.replica.mirror is not None
            own = NO_EPOCH if leader is None or is_mirror else leader.epoch
            compares = is_mirror and self._log.end_offset > self._log.start_offset
            if last_epoch > max(own, self._log.last_epoch) and not compares:
                return None
            epoch, end = self._log.end_of(last_epoch)
            if epoch < last_epoch or end < offset:
                return Diverging(epoch, end)
        return self.disk.read(offset, offset + BATCH_MAX) if offset <= self.disk.end else None

    def _perform(self, effects: list[MirrorEffect], entries: tuple[Entry, ...] = ()) -> None:
        for effect in effects:
            match effect:
                case AppendBatches():
                    self._append(entries)
                case Truncate(offset):
                    self.cuts.append(offset)
                    self.disk.truncate(offset)
                case RaiseEpoch(epoch):
                    self._begin_epoch(epoch, cuts=False)
                case AskCut():
                    self._begin_epoch(NO_EPOCH, cuts=True)
                case AskEnds():
                    pytest.fail(f"{self.name} does not learn where its log parts from the source's")
                case _:
                    pytest.fail(f"{self.name}: {effect}")

    def _begin_epoch(self, least: int, *, cuts: bool) -> None:
        request = AlterMirrorPartitionRequest(
            broker_id=1,
            broker_epoch=self.cluster.metadata.brokers[1].epoch,
            topic_id=self.cluster.topic_id("t"),
            partition_index=0,
            leader_epoch=self.cluster.partition().leader_epoch,
            least_leader_epoch=least,
            cuts=cuts,
        )
        assert self.cluster.ask(request, AlterMirrorPartitionResponse).error_code == 0
        self.lead()

    def _append(self, entries: tuple[Entry, ...]) -> None:
        self.disk.append(entries)
        self.disk.sync(self.disk.end)
        self.replica.on_appended(self.disk.end)
        self.replica.on_flushed(self._log.generation, self.disk.end)


def common(one: list[Entry], other: list[Entry]) -> int:
    """Return how many records two logs have in common from the start on."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def copy_all(side: Side) -> None:
    """Copy to the end, and check the law."""
    source = side.source
    assert source is not None
    before = [*side.disk.entries]
    kept = common(before, source.disk.entries)
    side.cuts.clear()
    for _ in range(4 * (len(before) + len(source.disk.entries)) + 20):
        side.step()
    assert side.disk.entries == source.disk.entries
    assert min(side.cuts, default=len(before)) == kept
    assert side.replica.mirror is not None
    assert side.replica.mirror.lag == 0


def three(seed: int) -> list[Side]:
    """Return a cluster and two that mirror it."""
    sides = [Side(name, seed * 3 + number) for number, name in enumerate("abc")]
    sides[0].cluster.create("t")
    sides[0].lead()
    for each in sides[1:]:
        assert each.follow(sides[0], is_first=True).error_code == 0
    return sides


def test_each_fail_back_after_two_promotions_works() -> None:
    """`a`, `b` and `a` are promoted in turn; `a` was refused then, as it is in later epochs."""
    a, b, _ = three(0)
    a.produce(0)
    copy_all(b)
    b.promote()
    b.produce(1)
    assert a.follow(b).error_code == 0
    # Nothing of `b` is copied before `a` is promoted, too.
    a.promote()
    a.produce(2)
    assert a.follow(b).error_code == 0
    copy_all(a)
    assert [each.sequence for each in a.disk.entries] == [0, 1]
    a.promote()
    a.produce(3)
    assert b.follow(a).error_code == 0
    copy_all(b)
    # A promotion by mistake is taken back.
    b.promote()
    b.produce(4)
    assert b.follow(a).error_code == 0
    copy_all(b)
    assert [each.sequence for each in b.disk.entries] == [0, 1, 3]


@pytest.mark.parametrize("links_late", [False, True])
def test_a_mirror_of_a_cluster_that_takes_its_promotion_back_follows_it(
    *, links_late: bool
) -> None:
    """A chain: `c` has copied what `b`, promoted by mistake, wrote, and `b` has it no more."""
    a, b, c = [Side(name, number) for number, name in enumerate("abc")]
    a.cluster.create("t")
    a.lead()
    assert b.follow(a, is_first=True).error_code == 0
    a.produce(0)
    copy_all(b)
    if not links_late:
        assert c.follow(b, is_first=True).error_code == 0
    b.promote()
    if links_late:
        assert c.follow(b, is_first=True).error_code == 0
    b.produce(1)
    b.produce(2)
    copy_all(c)
    assert b.follow(a).error_code == 0
    a.produce(3)
    copy_all(b)
    copy_all(c)
    assert [each.sequence for each in c.disk.entries] == [0, 3]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_fail_back_keeps_what_both_logs_have_and_takes_the_rest(seed: int) -> None:
    random = Random(seed)
    sides = three(seed)
    for sequence in range(60):
        side = random.choice(sides)
        kind = random.randrange(8)
        if side.source is None and kind < 4:
            side.produce(sequence)
        elif side.source is None and kind < 6:
            others = [each for each in sides if each is not side and each.source is None]
            if not others or any(each.source is side for each in sides):
                continue
            result = side.follow(random.choice(others))
            if "at the same leader epoch" in (result.error_message or ""):
                return  # One in 512, see `are_ambiguous`.
            assert result.error_code == 0, result.error_message
        elif side.source is not None and kind < 4:
            for _ in range(random.randint(1, 4)):
                side.step()
        elif side.source is not None and kind < 6:
            copy_all(side)
        elif side.source is not None:
            side.promote()
