"""SealControl: the controller's decisions on topics that another cluster takes over.

Rules of this module:

- A seal and its end begin a leader epoch of all partitions, see `metadata.topic_seals`.
- An attempt ends what it has begun, or what an earlier attempt of that cluster has, and never what
  a later one has. Two operators who promote one topic can't undo each other's seal by that.
- What another cluster has taken over is opened by an operator's explicit word only: then two
  clusters take records for one topic.

Not done here: when a target is complete (`client.admin.promotion`), its promotion
(`mirror_control`).
"""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.broker.quorum.controller.decision import (
    ControllerContext,
    Decision,
    DecisionHandlers,
    decides,
)
from streamlog.broker.quorum.metadata.cluster_metadata import TopicRegistration
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.topic_seals import SealState, TopicSeal
from streamlog.errors import LogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.metadata_log import PartitionChangeRecord
from streamlog.protocol.messages.mirror_messages import (
    AlterableSeal,
    AlterSealsRequest,
    AlterSealsResponse,
    SealResult,
)
from streamlog.protocol.schema import ZERO_UUID
from streamlog.replace import replace

BY_OPERATOR = -1
"""The attempt of a request that belongs to no promotion."""
INTERNAL_PREFIX = "__"


class SealControl:
    """Seals of topics, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict([decides(AlterSealsRequest, self.alter_seals)])

    def alter_seals(
        self, request: AlterSealsRequest, _: int, __: int
    ) -> Decision[AlterSealsResponse]:
        """Seal topics, mark them as moved, or open them, each of them alone."""
        records: dict[bytes, list[MetadataRecord]] = {}
        results = []
        for asked in request.topics:
            result = SealResult(name=asked.name)
            try:
                topic = self._topic(asked)
                records[topic.topic_id] = [*self._altered(topic, asked, request)]
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            results.append(result)

        def answer() -> AlterSealsResponse:
            for result in results:
                topic = self._context.metadata.topic(result.name)
                if topic is not None and not result.error_code:
                    each = sorted(topic.partitions.items())
                    result.leader_epochs = [partition.leader_epoch for _, partition in each]
            return AlterSealsResponse(topics=results)

        return Decision(tuple(each for one in records.values() for each in one), answer)

    def _topic(self, asked: AlterableSeal) -> TopicRegistration:
        topic = self._context.metadata.topic(asked.name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {asked.name!r}")
        if asked.topic_id not in (ZERO_UUID, topic.topic_id):
            raise error_for(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{asked.name} was deleted and created again: its mirror copies the former one",
            )
        return topic

    def _altered(
        self, topic: TopicRegistration, asked: AlterableSeal, request: AlterSealsRequest
    ) -> Iterator[MetadataRecord]:
        """Yield the records of a change. Raises LogError if it is refused."""
        known = self._context.metadata.seals.get(topic.topic_id)
        try:
            state = SealState(asked.state)
        except ValueError as error:
            raise _refused(f"{topic.name}: there is no state {asked.state} of a seal") from error
        after = TopicSeal(
            topic_id=topic.topic_id,
            state=state,
            target_cluster_id=request.target_cluster_id,
            attempt=asked.attempt,
            since_ms=request.wall_ms,
        )
        if state is SealState.SEALED:
            self._check_sealable(topic, known, after)
        elif state is SealState.MOVED:
            _check_moved(topic, known, after)
        else:
            after = _opened(topic, known, after, is_forced=asked.is_forced)
        # The answer to a request may be lost, so that it is sent again. Nothing begins anew then.
        if known is not None and replace(known, since_ms=after.since_ms) == after:
            return
        yield after.record()
        if after.is_closed != (known is not None and known.is_closed):
            yield from new_epochs(topic, -1)

    def _check_sealable(
        self, topic: TopicRegistration, known: TopicSeal | None, after: TopicSeal
    ) -> None:
        mirror = self._context.metadata.mirrors.get(topic.topic_id)
        if topic.name.startswith(INTERNAL_PREFIX) or not after.target_cluster_id:
            raise _refused(f"{topic.name} can't be sealed: only a cluster that mirrors it seals it")
        if mirror is not None and mirror.is_mirror:
            raise _refused(
                f"{topic.name} mirrors cluster {mirror.eras[-1].cluster_id} itself: its end is not"
                " this cluster's to name. Promote it here first, or there with --now"
            )
        if known is None or known == replace(after, since_ms=known.since_ms):
            return
        if known.state is SealState.MOVED:
            raise _refused(f"{topic.name} has moved to cluster {known.target_cluster_id} already")
        if known.is_closed and known.target_cluster_id != after.target_cluster_id:
            raise _refused(
                f"{topic.name} is sealed for cluster {known.target_cluster_id}, which takes it over"
            )
        if after.attempt <= known.attempt:
            raise _superseded(topic, known, after)


def _check_moved(topic: TopicRegistration, known: TopicSeal | None, after: TopicSeal) -> None:
    """Check that the promotion for which a topic was sealed is the one that has ended."""
    if known is None or not known.is_closed or not _is_of(known, after):
        raise _refused(f"{topic.name} is not sealed for promotion {after.attempt}")


def _opened(
    topic: TopicRegistration, known: TopicSeal | None, after: TopicSeal, *, is_forced: bool
) -> TopicSeal:
    """Return what a topic's seal is once the topic takes records. Raises LogError if refused."""
    if after.attempt == BY_OPERATOR:
        if known is None:
            raise _refused(f"{topic.name} is not sealed")
        if known.state is SealState.MOVED and not is_forced:
            raise _refused(
                f"{topic.name} has moved to cluster {known.target_cluster_id}, which takes records"
                " for it: let it follow by `streamlog mirror fail-back`. If that cluster is gone,"
                " or has deleted its topic, add --force"
            )
        return replace(known, state=SealState.OPEN, since_ms=after.since_ms)
    # 1. Attempt 1 asks for a seal, and the request is delayed. 2. It is given up, and unseals what
    # is not sealed yet. 3. The delayed request arrives: without a trace of attempt 1, it would seal
    # the topic, and no one would ever open it.
    if known is None or not known.is_closed:
        attempt = max(after.attempt, -1 if known is None else known.attempt)
        return replace(after, attempt=attempt)
    if known.state is SealState.MOVED:
        raise _refused(f"{topic.name} has moved to cluster {known.target_cluster_id}")
    if known.target_cluster_id != after.target_cluster_id or after.attempt < known.attempt:
        raise _superseded(topic, known, after)
    return after


def _is_of(known: TopicSeal, after: TopicSeal) -> bool:
    return (known.target_cluster_id, known.attempt) == (after.target_cluster_id, after.attempt)


def _superseded(topic: TopicRegistration, known: TopicSeal, after: TopicSeal) -> LogError:
    return _refused(
        f"{topic.name}: promotion {after.attempt} was given up, or another operator has begun"
        f" promotion {known.attempt}, for cluster {known.target_cluster_id}"
    )


def _refused(detail: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, detail)


def new_epochs(
    topic: TopicRegistration, least_leader_epoch: int
) -> Iterator[PartitionChangeRecord]:
    """Return records that begin a leader epoch of all partitions, with the leaders of before."""
    # The leaders stay: they have what came last, and moving them would only cost time.
    for number, partition in sorted(topic.partitions.items()):
        yield PartitionChangeRecord(
            topic_id=topic.topic_id,
            partition_id=number,
            leader=partition.leader,
            least_leader_epoch=least_leader_epoch,
        )
