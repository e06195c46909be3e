"""Offsets of a query: checkpoints, and detection of replaced or truncated logs."""

from __future__ import annotations

import json
import re

import pytest

from spark_bridge.stream_reader import StreamOffset, lost_logs
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from streamlog.replace import replace

A1 = TopicPartition("a", 1)
OFFSET = StreamOffset(
    {"a": {"0": 5, "1": 7}, "b": {"0": 3}},
    {"a": "aa", "b": "bb"},
    epochs={"a": {"1": ((0, 0), (2, 4))}},
)
BOUNDS = {
    TopicPartition("a", 0): (0, 9),
    TopicPartition("a", 1): (2, 9),
    TopicPartition("b", 0): (0, 3),
}


def test_a_stream_offset_round_trips_through_json() -> None:
    moved = replace(OFFSET, restarts={"a": {"1": 2}})
    for offset_ in (OFFSET, moved):
        assert StreamOffset.of_data(json.loads(json.dumps(offset_.to_data()))) == offset_


def test_a_checkpoint_of_an_earlier_build_has_no_epochs() -> None:
    data = OFFSET.to_data()
    for each in data.values():
        del each["epochs"]
    assert StreamOffset.of_data(data) == replace(OFFSET, epochs={})


def test_an_earlier_checkpoint_has_topic_ids_as_hexadecimal_text() -> None:
    topic_id = bytes(range(16))
    data = {"a": {"id": topic_id.hex(), "offsets": {"0": 5}, "restarts": {}}}
    offset = StreamOffset.of_data(data)
    assert lost_logs(offset, {"a": id_text(topic_id)}, BOUNDS, {}) == []
    assert lost_logs(offset, {"a": id_text(bytes(15) + b"1")}, BOUNDS, {})


@pytest.mark.parametrize("ids", [{"a": "aa", "b": "bb"}, {"a": "", "b": ""}, {}])
def test_unchanged_logs_are_continued(ids: dict[str, str]) -> None:
    assert lost_logs(OFFSET, ids, BOUNDS, {}) == []
    offset = OFFSET.same_topics(ids)
    assert offset[A1] == (7, ((0, 0), (2, 4)))
    assert len(offset) == 3


def test_a_recreated_topic_is_restarted() -> None:
    ids = {"a": "a2", "b": "bb"}
    (first, position), (second, _) = lost_logs(OFFSET, ids, BOUNDS, {})
    assert (position, first.same_until, second.same_until) == (5, 0, 0)
    assert re.search(r"a-0: the topic was deleted.*aa, now a2.*offset 5", first.text)
    assert OFFSET.restarted({"a": {"0": 0, "1": 2}}) == {"a": {"0": 0, "1": 2}, "b": {"0": 3}}
    assert [*OFFSET.same_topics(ids)] == [TopicPartition("b", 0)]


def test_a_log_that_ends_before_the_offset_is_truncated() -> None:
    shorter = {**BOUNDS, TopicPartition("b", 0): (0, 2)}
    ((lost, _),) = lost_logs(OFFSET, OFFSET.ids, shorter, {})
    assert lost.text == "b-0: the log was truncated: it ends at 2, and offset 3 was next"
    assert lost.same_until == 0  # The offset of the divergence is unknown.


def test_a_truncated_log_that_grew_again_is_detected() -> None:
    ((lost, position),) = lost_logs(OFFSET, OFFSET.ids, BOUNDS, {A1: 4})
    assert (position, lost.same_until) == (7, 4)
    assert lost.text == (
        "a-1: the log was truncated: from offset 4 on it holds other records, it ends at 9, and"
        " offset 7 was next"
    )
