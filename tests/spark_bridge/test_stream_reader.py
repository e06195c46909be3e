"""Where a query stands: comes back from its checkpoint, and tells of logs that are others."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from spark_bridge.stream_reader import StreamOffset, lost_logs
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition

A1 = TopicPartition("a", 1)
STOOD = StreamOffset(
    {"a": {"0": 5, "1": 7}, "b": {"0": 3}},
    {"a": "aa", "b": "bb"},
    epochs={"a": {"1": ((0, 0), (2, 4))}},
)
BOUNDS = {
    TopicPartition("a", 0): (0, 9),
    TopicPartition("a", 1): (2, 9),
    TopicPartition("b", 0): (0, 3),
}


def test_it_comes_back_from_json() -> None:
    moved = replace(STOOD, restarts={"a": {"1": 2}})
    for place in (STOOD, moved):
        assert StreamOffset.of_data(json.loads(json.dumps(place.to_data()))) == place


def test_a_checkpoint_of_an_earlier_build_has_no_epochs() -> None:
    data = STOOD.to_data()
    for each in data.values():
        del each["epochs"]
    assert StreamOffset.of_data(data) == replace(STOOD, epochs={})


def test_a_checkpoint_of_an_earlier_build_has_topic_ids_as_hexadecimal_text() -> None:
    topic_id = bytes(range(16))
    data = {"a": {"id": topic_id.hex(), "offsets": {"0": 5}, "restarts": {}}}
    stood = StreamOffset.of_data(data)
    assert lost_logs(stood, {"a": id_text(topic_id)}, BOUNDS, {}) == []
    assert lost_logs(stood, {"a": id_text(bytes(15) + b"1")}, BOUNDS, {})


@pytest.mark.parametrize("ids", [{"a": "aa", "b": "bb"}, {"a": "", "b": ""}, {}])
def test_the_same_logs_are_read_on(ids: dict[str, str]) -> None:
    assert lost_logs(STOOD, ids, BOUNDS, {}) == []
    stood = STOOD.same_topics(ids)
    assert stood[A1] == (7, ((0, 0), (2, 4)))
    assert len(stood) == 3


def test_a_topic_that_was_created_again_is_begun_with_again() -> None:
    ids = {"a": "a2", "b": "bb"}
    (first, position), (second, _) = lost_logs(STOOD, ids, BOUNDS, {})
    assert (position, first.same_until, second.same_until) == (5, 0, 0)
    assert re.search(r"a-0: the topic was deleted.*aa, now a2.*offset 5", first.text)
    assert STOOD.restarted({"a": {"0": 0, "1": 2}}) == {"a": {"0": 0, "1": 2}, "b": {"0": 3}}
    assert [*STOOD.same_topics(ids)] == [TopicPartition("b", 0)]


def test_a_log_that_ends_before_is_truncated() -> None:
    shorter = {**BOUNDS, TopicPartition("b", 0): (0, 2)}
    ((lost, _),) = lost_logs(STOOD, STOOD.ids, shorter, {})
    assert lost.text == "b-0: the log was truncated: it ends at 2, and offset 3 was next"
    assert lost.same_until == 0  # Nobody knows.


def test_a_log_that_has_grown_again_is_truncated() -> None:
    ((lost, position),) = lost_logs(STOOD, STOOD.ids, BOUNDS, {A1: 4})
    assert (position, lost.same_until) == (7, 4)
    assert lost.text == (
        "a-1: the log was truncated: from offset 4 on it holds other records, it ends at 9, and"
        " offset 7 was next"
    )
