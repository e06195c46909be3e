"""LosslessPromotion: lets mirrors become topics of their cluster, with all records of the source.

1. The target begins an attempt with a number. Its mirrors copy on.
2. The source seals its topics for that attempt: their leaders take no records any more.
3. The client waits until the target has everything, see `missing`, and all groups once more.
4. The target promotes, in one decision of its controller, which counts for this attempt only.
5. The source notes that the topics have moved. They stay sealed, and can fail back.

Rules of this module:

- Before step 4 it can be given up: first at the target, which then refuses to promote, and after
  that at the source, which takes records again. In the other order, the source could take a record
  that the target is promoted without.
- After step 4 it can't: the source stays sealed, and a command that is run again does step 5.
- What was decided is unknown when an answer is lost. Then the target is asked, not guessed.

An app's workers have to be stopped on both sides. That is checked before step 1, and once more
before step 4: a worker that has started in between may have committed positions since step 3.

Apache Kafka can't be sealed. There, the ends of the partitions have to stay where they are for a
while, without an open transaction. That producers are stopped is the operator's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from streamlog.client.admin.admin_area import AdminArea, check, raise_refused
from streamlog.client.admin.group_admin import GroupAdmin
from streamlog.client.admin.mirror_answers import (
    Answers,
    LeaderReports,
    SealReports,
    freshest,
    leader_reports,
    mirror_answers,
    seal_reports,
)
from streamlog.client.cluster import Cluster
from streamlog.client.offset_lookup import LATEST, Isolation, list_offsets
from streamlog.errors import (
    LogError,
    NotAuthorized,
    PromotionGivenUp,
    StreamlogError,
    UnsupportedVersion,
    quantity,
    some_of,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterableSeal,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    AlterSealsRequest,
    AlterSealsResponse,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedSealPartition,
    MirrorResult,
    SealResult,
)
from streamlog.record import TopicPartition

_ACTIVE, _PROMOTED, _PROMOTING = 0, 3, 4
"""States of a mirror topic, by the protocol's numbers."""
_OPEN, _SEALED, _MOVED = 0, 1, 2
"""States of a seal."""
LOOK_S: Final = 0.2
"""The time between two looks at both sides."""
GIVE_UP_S: Final = 20
"""How long to try to give up, at each side."""


class PromotionPatience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a promotion waits."""

    timeout_ms: int = 120_000
    """Until it is given up. A transaction that no one ends takes a minute, Kafka's default."""
    still_ms: int = 10_000
    """How long the ends of partitions of Apache Kafka have to stay where they are."""


class PromotionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a promotion without loss has done."""

    promoted: tuple[str, ...]
    noted: tuple[str, ...]
    """Topics that an earlier command promoted; this one has notified the source."""
    is_sealed: bool
    """Whether the source is sealed; if not, it is Apache Kafka, and its ends have stood still."""
    trouble: str
    """Why the source was not notified of the promotion; empty if it was."""


def missing(
    mirror: DescribedMirror, here: LeaderReports, there: SealReports, epochs: Collection[int]
) -> str:
    """Return what a mirror waits for before it has all that its sealed source will ever have. Pure.

    Args:
        mirror: the mirror topic.
        here: what the leaders of its partitions tell.
        there: what the leaders of the source's partitions tell.
        epochs: the leader epochs in which the source's partitions were sealed.
    """
    if mirror.num_partitions != len(epochs):
        return f"{mirror.name} has {mirror.num_partitions} partitions, its source {len(epochs)}"
    for number, epoch in enumerate(epochs):
        source, own = there.get(number), here.get(number)
        gap = (
            # A leader of an earlier epoch may still take records after it has named its end.
            "its leader at the source does not know yet that it is sealed"
            if source is None or source.leader_epoch < epoch
            else "its leader in this cluster does not answer"
            if own is None
            else _gap_at_source(source) or _gap_here(own[1], source)
        )
        if gap:
            return f"{mirror.name}-{number}: {gap}"
    return ""


def _gap_at_source(source: DescribedSealPartition) -> str:
    # What is appended and not committed may still be acknowledged, and may still be lost.
    if source.high_watermark != source.log_end_offset:
        return "the source commits its last records"
    if source.last_stable_offset != source.log_end_offset:
        return "a transaction is open at the source"
    return ""


def _gap_here(own: DescribedMirrorPartition, source: DescribedSealPartition) -> str:
    if own.trouble:
        return own.trouble
    if own.log_end_offset != source.log_end_offset:
        return f"it ends at {own.log_end_offset} here, and at {source.log_end_offset} at the source"
    # A leader here that is lost before its followers have everything would take it along.
    if own.high_watermark != own.log_end_offset:
        return "this cluster commits its last records"
    # One leader per epoch: logs whose last records agree in offset and epoch are equal. A log that
    # is empty here has nothing that could differ: retention was faster.
    if own.last_epoch not in (source.last_epoch, -1):
        return "it ends where its source does, with other records"
    return ""


async def check_stopped(groups: GroupAdmin, app: str, where: str) -> None:
    """Check that an app has no workers, by the members of its group.

    Args:
        groups: the groups of one side.
        app: the app.
        where: the side, for the message.

    Raises:
        PromotionGivenUp: it has some.
        LogError: the user may not describe the group.
    """
    try:
        (group,) = await groups.describe_groups([app])
    except LogError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.members:
        names = [f"{each.client_id} ({each.client_host})" for each in group.members]
        raise PromotionGivenUp(
            f"app {app} still has {quantity(len(names), 'worker')} {where}, {some_of(names)}: stop"
            " them, and run the command again. One that was killed counts until its session"
            " time-out"
        )


class PromotionSide(AdminArea):
    """One of the two clusters."""

    @property
    def cluster(self) -> Cluster:
        """Its brokers."""
        return self._cluster

    async def alter(self, what: str, mirrors: Mapping[str, int], state: int) -> list[MirrorResult]:
        """Change the state of mirrors, with the number of the attempt."""
        request = AlterMirrorsRequest(
            wall_ms=self._cluster.clock.wall_ms(),
            topics=[
                AlterableMirror(name=name, state=state, attempt=attempt)
                for name, attempt in mirrors.items()
            ],
        )

        def read(answer: AlterMirrorsResponse) -> list[MirrorResult]:
            check(what, answer.error_code, answer.error_message)
            return answer.topics

        return await self._ask_controller(request, AlterMirrorsResponse, read)

    async def seal(
        self, what: str, target_cluster_id: str, topics: list[AlterableSeal]
    ) -> list[SealResult]:
        """Change the seals of topics."""
        request = AlterSealsRequest(
            target_cluster_id=target_cluster_id,
            wall_ms=self._cluster.clock.wall_ms(),
            topics=topics,
        )

        def read(answer: AlterSealsResponse) -> list[SealResult]:
            check(what, answer.error_code, answer.error_message)
            return answer.topics

        return await self._ask_controller(request, AlterSealsResponse, read)


class LosslessPromotion:
    """One run of a promotion without loss.

    Args:
        target: the cluster that has the mirrors.
        source: the cluster that they copy.
        patience: how long to wait for what.
        on_wait: called with what is waited for, whenever that changes.
    """

    def __init__(
        self,
        target: Cluster,
        source: Cluster,
        *,
        patience: PromotionPatience,
        on_wait: Callable[[str], None],
    ) -> None:
        self._target, self._source = PromotionSide(target), PromotionSide(source)
        self._patience = patience
        self._on_wait = on_wait
        self._waits_for = ""
        self._cluster_id = ""
        self._app = ""
        self._mirrors: dict[str, DescribedMirror] = {}
        self._attempts: dict[str, int] = {}
        self._is_sealed = True
        self._may_be_sealed = False
        """Whether the source may have sealed topics for this run."""

    async def run(
        self, names: Collection[str], *, copies_groups: bool, app: str = ""
    ) -> PromotionOutcome:
        """Promote mirrors, see `MirrorAdmin.promote_mirrors`."""
        self._app = app
        newest = freshest((await mirror_answers(self._target.cluster))[0])
        self._cluster_id = newest.cluster_id
        self._mirrors = {each.name: each for each in newest.topics if each.name in names}
        least, noted = await self._look_at_source()
        left = {
            name: least.get(each.source_topic, 0)
            for name, each in self._mirrors.items()
            if each.state != _PROMOTED
        }
        if left:
            try:
                await self._check_stopped()
            except PromotionGivenUp as error:
                raise PromotionGivenUp(f"{error}. Nothing has changed") from error
            results = await self._target.alter("begin the promotion", left, _PROMOTING)
            self._attempts = {each.name: each.attempt for each in results if not each.error_code}
            await self._promote(results, copies_groups=copies_groups)
        trouble = await self._note_moved([*left, *noted]) if self._is_sealed else ""
        return PromotionOutcome(
            promoted=tuple(left), noted=noted, is_sealed=self._is_sealed, trouble=trouble
        )

    async def _look_at_source(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return the attempts that the source knows, and promoted topics that it has to note."""
        try:
            answers, _ = await mirror_answers(self._source.cluster)
        except UnsupportedVersion:
            self._is_sealed = False
            return {}, ()
        seals = {each.name: each for each in freshest(answers).seals}
        noted = []
        for name, each in self._mirrors.items():
            seal = seals.get(each.source_topic)
            if each.state != _PROMOTED or seal is None or seal.state != _SEALED:
                continue
            if (seal.target_cluster_id, seal.attempt) == (self._cluster_id, each.attempt):
                noted.append(name)
                self._attempts[name] = each.attempt
        return {name: each.attempt for name, each in seals.items()}, tuple(noted)

    async def _check_stopped(self) -> None:
        if self._app:
            await check_stopped(GroupAdmin(self._source.cluster), self._app, "at the source")
            await check_stopped(GroupAdmin(self._target.cluster), self._app, "in this cluster")

    async def _promote(self, begun: list[MirrorResult], *, copies_groups: bool) -> None:
        """Do the steps that can be given up, and the decision."""
        open_attempts = {each.name: each.attempt for each in begun if not each.error_code}
        try:
            _raise_refused("promote", begun)
            async with asyncio.timeout(self._patience.timeout_ms / 1000):
                if self._is_sealed:
                    await self._until_complete(await self._seal(open_attempts))
                else:
                    await self._until_still()
                if copies_groups:
                    await self._until_groups_are_copied()
                await self._check_stopped()
            _raise_refused("promote", await self._target.alter("promote", open_attempts, _PROMOTED))
        except asyncio.CancelledError as error:
            # After Ctrl-C no one waits any more, and producers must not stay locked out for that.
            await self._is_promoted(open_attempts, error)
            raise
        except (StreamlogError, OSError, TimeoutError) as error:
            if not await self._is_promoted(open_attempts, error):
                raise self._given_up(error) from error

    async def _seal(self, attempts: Mapping[str, int]) -> dict[str, list[int]]:
        """Seal the source; return the leader epochs of its partitions, by mirror."""
        self._may_be_sealed = True
        try:
            results = await self._alter_seals("seal the source", attempts, _SEALED)
        except NotAuthorized:
            self._may_be_sealed = False
            raise
        outcomes = [(each.name, each.error_code, each.error_message) for each in results]
        raise_refused("seal", outcomes)
        by_name = {each.name: each.leader_epochs for each in results}
        return {name: by_name[self._mirrors[name].source_topic] for name in attempts}

    async def _alter_seals(
        self, what: str, attempts: Mapping[str, int], state: int
    ) -> list[SealResult]:
        topics = [
            AlterableSeal(
                name=self._mirrors[name].source_topic,
                topic_id=self._mirrors[name].source_topic_id,
                state=state,
                attempt=attempt,
            )
            for name, attempt in attempts.items()
        ]
        return await self._source.seal(what, self._cluster_id, topics)

    # ---- waiting ----

    def _wait_for(self, what: str) -> None:
        if what != self._waits_for:
            self._waits_for = what
            self._on_wait(what)

    async def _until_complete(self, epochs: Mapping[str, list[int]]) -> None:
        """Wait until all mirrors have all that the source will ever have."""
        self._wait_for("the source is sealed")
        while True:
            # The source first: what it names as its end is final, and the target only grows.
            there, _ = await mirror_answers(self._source.cluster)
            here, _ = await mirror_answers(self._target.cluster)
            gap = self._gap(here, there, epochs)
            if not gap:
                return
            self._wait_for(gap)
            await asyncio.sleep(LOOK_S)

    def _gap(self, here: Answers, there: Answers, epochs: Mapping[str, list[int]]) -> str:
        ours, theirs = leader_reports(here), seal_reports(there)
        source_ids = {each.name: each.topic_id for each in freshest(there).seals}
        mirrors = {each.name: each for each in freshest(here).topics}
        ended = [name for name in epochs if self._has_ended(name, mirrors.get(name))]
        if ended:
            raise PromotionGivenUp(f"another operator has ended the promotion of {some_of(ended)}")
        for name, sealed in epochs.items():
            mirror = mirrors.get(name)
            if mirror is None or mirror.attempt < self._attempts[name]:
                return f"{name}: the brokers here do not know yet that it is being promoted"
            source_id = source_ids.get(mirror.source_topic, b"")
            gap = missing(mirror, ours.get(mirror.topic_id, {}), theirs.get(source_id, {}), sealed)
            if gap:
                return gap
        return ""

    def _has_ended(self, name: str, mirror: DescribedMirror | None) -> bool:
        if mirror is None or mirror.attempt < self._attempts[name]:
            return False
        return (mirror.state, mirror.attempt) != (_PROMOTING, self._attempts[name])

    async def _until_still(self) -> None:
        """Wait until the ends of a source that can't be sealed have stood still for a while."""
        clock = self._target.cluster.clock
        before: dict[TopicPartition, int] = {}
        since_ms = clock.now_ms()
        while True:
            ends, stable = await self._ends("read_uncommitted"), await self._ends("read_committed")
            answers, _ = await mirror_answers(self._target.cluster)
            gap = self._gap_to(ends, stable, answers)
            if gap or ends != before:
                before, since_ms = ends, clock.now_ms()
            elif clock.now_ms() - since_ms >= self._patience.still_ms:
                return
            still_s = self._patience.still_ms // 1000
            self._wait_for(gap or f"the ends of the source have to stand still for {still_s} s")
            await asyncio.sleep(LOOK_S)

    async def _ends(self, isolation: Isolation) -> dict[TopicPartition, int]:
        wanted: dict[TopicPartition, int] = {}
        for name in self._attempts:
            topic = self._mirrors[name].source_topic
            numbers = (await self._source.cluster.topic(topic)).leaders
            wanted |= {TopicPartition(topic, number): LATEST for number in numbers}
        found = await list_offsets(self._source.cluster, wanted, isolation=isolation)
        return {where: each.offset for where, each in found.items()}

    def _gap_to(
        self,
        ends: Mapping[TopicPartition, int],
        stable: Mapping[TopicPartition, int],
        answers: Answers,
    ) -> str:
        reports = leader_reports(answers)
        names = {self._mirrors[name].source_topic: name for name in self._attempts}
        for where, end in ends.items():
            mirror = self._mirrors[names[where.topic]]
            report = reports.get(mirror.topic_id, {}).get(where.partition)
            if stable.get(where) != end:
                return f"{where.topic}-{where.partition}: a transaction is open at the source"
            if report is None or report[1].trouble:
                why = "its leader here does not answer" if report is None else report[1].trouble
                return f"{mirror.name}-{where.partition}: {why}"
            own = report[1]
            # By an answer of a while ago, the logs may have parted since.
            if not 0 <= own.silent_ms <= self._patience.still_ms:
                return f"{mirror.name}-{where.partition}: the source does not answer its leader"
            if (own.log_end_offset, own.high_watermark, own.source_end_offset) != (end, end, end):
                return f"{mirror.name}-{where.partition}: it is not at {end}, the source's end"
        return ""

    async def _until_groups_are_copied(self) -> None:
        """Wait until whatever was committed at the source before now is committed here."""
        clock = self._target.cluster.clock
        complete_ms = clock.now_ms()
        links = {each.link_id for each in self._mirrors.values()}
        while True:
            asked_ms = clock.now_ms()
            answers, silent = await mirror_answers(self._target.cluster)
            ages = {
                node_id: link.groups_ms
                for node_id, answer in answers.items()
                for link in answer.links
                if link.link_id in links
            } | dict.fromkeys(silent, -1)
            late = [
                node_id
                for node_id, age_ms in ages.items()
                # Its answer is younger than the question, so that its round began even later.
                if not 0 <= age_ms <= asked_ms - complete_ms
            ]
            if not late:
                return
            self._wait_for(f"broker {late[0]} copies the committed offsets of groups once more")
            await asyncio.sleep(LOOK_S)

    # ---- the end ----

    async def _is_promoted(self, attempts: Mapping[str, int], error: BaseException) -> bool:
        """Give up, unless the promotion has been decided; return whether it has."""
        begun = "promotion was begun, and is not given up yet"
        advice = (
            f"{begun}: run the command again. To undo it, `streamlog mirror resume` these topics"
            " here, and after that `streamlog mirror unseal` theirs at the source"
        )
        try:
            async with asyncio.timeout(GIVE_UP_S):
                results = await self._target.alter("give up", attempts, _ACTIVE)
                newest = freshest((await mirror_answers(self._target.cluster))[0])
        except (StreamlogError, OSError, TimeoutError) as lost:
            raise PromotionGivenUp(
                f"{_text(error, self._waits_for)}; {advice}: {_why(lost)}"
            ) from error
        refused = {each.name for each in results if each.error_code}
        states = {each.name: (each.state, each.attempt) for each in newest.topics}
        promoted = {each for each in refused if states.get(each) == (_PROMOTED, attempts[each])}
        # One decision for all: either every topic was promoted by it, or none.
        if promoted and promoted == {*attempts}:
            return True
        await self._note_moved(promoted)
        await self._unseal({name: attempts[name] for name in attempts if name not in refused})
        return False

    async def _unseal(self, attempts: Mapping[str, int]) -> None:
        if not self._may_be_sealed or not attempts:
            return
        topics = some_of([self._mirrors[name].source_topic for name in attempts])
        try:
            async with asyncio.timeout(GIVE_UP_S):
                results = await self._alter_seals("unseal the source", attempts, _OPEN)
        except (StreamlogError, OSError, TimeoutError) as error:
            raise self._left_sealed(topics, _why(error)) from error
        refused = [each.error_message or "" for each in results if each.error_code]
        if refused:
            raise self._left_sealed(topics, some_of(refused))

    def _left_sealed(self, topics: str, why: str) -> PromotionGivenUp:
        return PromotionGivenUp(
            f"{self._waits_for}; given up here, but {topics} may still be sealed at the source:"
            f" {why}. There, `streamlog mirror unseal` lets them take records again; here, `promote"
            " --now` takes over with what has come"
        )

    def _given_up(self, error: Exception) -> PromotionGivenUp:
        late = f" ({self._patience.timeout_ms} ms are over)" * isinstance(error, TimeoutError)
        return PromotionGivenUp(
            f"{_text(error, self._waits_for)}{late}. The promotion is given up, and nothing has"
            " changed"
        )

    async def _note_moved(self, names: Collection[str]) -> str:
        """Let the source note that topics have moved; return why it has not."""
        attempts = {name: self._attempts[name] for name in names if name in self._attempts}
        if not attempts:
            return ""
        try:
            async with asyncio.timeout(GIVE_UP_S):
                results = await self._alter_seals("note the promotion", attempts, _MOVED)
        except (StreamlogError, OSError, TimeoutError) as error:
            return _why(error)
        return some_of([each.error_message or "" for each in results if each.error_code])


def _raise_refused(what: str, results: Collection[MirrorResult]) -> None:
    raise_refused(what, [(each.name, each.error_code, each.error_message) for each in results])


def _why(error: Exception) -> str:
    """Return why a cluster was not asked; a time-out has no text of its own."""
    return str(error) or "it does not answer"


def _text(error: BaseException, waits_for: str) -> str:
    """Return what went wrong; for a time-out, what was waited for."""
    if isinstance(error, TimeoutError):
        return waits_for
    # An operator who has begun another promotion has most often taken several of the topics.
    others = [*error.refusals][1:] if isinstance(error, LogError) else []
    return f"{error}; refused as well: {some_of(others)}" if others else str(error)
