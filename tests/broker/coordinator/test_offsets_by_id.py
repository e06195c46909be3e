"""OffsetCommit and OffsetFetch by topic id, against a dictionary from ids to offsets.

A topic that is deleted and created again has another id. An offset that was committed under one id
is never returned for another, whichever versions the clients use.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.coordinator.group.committed_offsets import fetch_offsets
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseTopics,
)
from streamlog.protocol.schema import ZERO_UUID
from tests.broker.coordinator.group.test_consumer_group import Catalog, Driver

BY_NAME, BY_ID = 9, 10
NAMES = ("t", "u")
NOWHERE = (255).to_bytes(16)


class Model:
    """The expected offsets, and the coordinator under test."""

    def __init__(self) -> None:
        self.driver = Driver(topics=Catalog(t=2, u=1))
        self.ids = [ZERO_UUID, NOWHERE, *(self.id_of(name) for name in NAMES)]
        """Every id that a topic has ever had, and two that no topic had."""
        self.offsets: dict[tuple[bytes, int], int] = {}

    def id_of(self, name: str) -> bytes:
        found = self.driver.topics.topic_id(name)
        assert found is not None
        return found

    def create_again(self, name: str) -> None:
        count = self.driver.topics.partitions(name)
        self.driver.topics.delete(name)
        self.driver.topics.create(name, count)
        self.ids.append(self.id_of(name))
        self.driver.coordinator.on_deletion(self.driver.now_ms)

    def tick(self) -> None:
        self.driver.take(self.driver.coordinator.on_tick(self.driver.at))

    def commit(self, topic: OffsetCommitRequestTopic, version: int) -> None:
        (each,) = topic.partitions
        request = OffsetCommitRequest(group_id="g", topics=[topic])
        response = self.driver.ask(request, version)
        assert isinstance(response, OffsetCommitResponse)
        (answer,) = response.topics
        assert (answer.name, answer.topic_id) == (topic.name, topic.topic_id)
        topic_id = topic.topic_id if version == BY_ID else self.id_of(topic.name)
        code = self.code(topic_id, each.partition_index)
        assert answer.partitions[0].error_code == code
        if code is ErrorCode.NONE:
            self.offsets[topic_id, each.partition_index] = each.committed_offset

    def code(self, topic_id: bytes, partition: int) -> ErrorCode:
        name = self.driver.topics.name_of(topic_id)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if partition >= self.driver.topics.partitions(name):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def fetch(
        self, topics: list[OffsetFetchRequestTopics] | None, version: int
    ) -> list[OffsetFetchResponseTopics]:
        group = OffsetFetchRequestGroup(group_id="g", topics=topics)
        request = OffsetFetchRequest(groups=[group])
        (found,) = fetch_offsets(request, self.driver.coordinator, version=version).groups
        return found.topics

    def check(self) -> None:
        present = {self.id_of(name): name for name in NAMES}
        for topic_id in self.ids:
            asked = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])
            (found,) = self.fetch([asked], BY_ID)
            assert found.topic_id == topic_id
            is_there = topic_id in present
            code = ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_ID
            for each in found.partitions:
                known = self.offsets.get((topic_id, each.partition_index), -1)
                assert each.error_code == code
                assert each.committed_offset == (known if is_there else -1)
                assert each.metadata == ""
            if is_there:
                named = OffsetFetchRequestTopics(name=present[topic_id], partition_indexes=[0, 1])
                (by_name,) = self.fetch([named], BY_NAME)
                assert by_name.partitions == found.partitions
        every = self.fetch(None, BY_ID)
        assert {
            (topic.topic_id, each.partition_index): each.committed_offset
            for topic in every
            for each in topic.partitions
        } == {entry: at for entry, at in self.offsets.items() if entry[0] in present}


@given(st.data())
def test_an_offset_belongs_to_one_topic_id(data: st.DataObject) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["create", "tick", "name", "id", "id"])):
            case "create":
                model.create_again(data.draw(st.sampled_from(NAMES)))
            case "tick":
                model.tick()
            case how:
                entry = OffsetCommitRequestPartition(
                    partition_index=data.draw(st.integers(0, 2)),
                    committed_offset=data.draw(st.integers(0, 99)),
                )
                topic = OffsetCommitRequestTopic(partitions=[entry])
                if how == "name":
                    topic.name = data.draw(st.sampled_from(NAMES))
                else:
                    topic.topic_id = data.draw(st.sampled_from(model.ids))
                model.commit(topic, BY_NAME if how == "name" else BY_ID)
        model.check()
