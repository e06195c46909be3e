"""Where a query stands: comes back from its checkpoint, and tells of logs that are others."""

from __future__ import annotations

import json
import logging

import pytest

from spark_bridge.stream_offsets import StreamOffset, restarts_of
from streamlog.assignors import TopicPartition
from streamlog.errors import SourceLost

STOOD = StreamOffset({"a": {"0": 5, "1": 7}, "b": {"0": 3}}, {"a": "aa", "b": "bb"})
BOUNDS = {
    TopicPartition("a", 0): (0, 9),
    TopicPartition("a", 1): (2, 9),
    TopicPartition("b", 0): (0, 3),
}


def test_it_comes_back_from_json() -> None:
    moved = StreamOffset(STOOD.offsets, STOOD.ids, {"a": {"1": 2}})
    for place in (STOOD, moved):
        assert StreamOffset.of_data(json.loads(json.dumps(place.to_data()))) == place


@pytest.mark.parametrize("ids", [{"a": "aa", "b": "bb"}, {"a": "", "b": ""}, {}])
def test_the_same_logs_are_read_on(ids: dict[str, str]) -> None:
    assert restarts_of(STOOD, ids, BOUNDS, fail=True) == {}
    assert len(STOOD.begun(ids)) == 3


def test_a_topic_that_was_created_again_is_begun_with_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = {"a": "a2", "b": "bb"}
    with pytest.raises(SourceLost, match=r"a-0: the topic was deleted.*aa, now a2.*offset 5"):
        restarts_of(STOOD, ids, BOUNDS, fail=True)
    with caplog.at_level(logging.WARNING):
        restarts = restarts_of(STOOD, ids, BOUNDS, fail=False)
    assert restarts == {"a": {"0": 0, "1": 2}}
    assert "a-1: the topic was deleted and created again" in caplog.text
    assert STOOD.restarted(restarts) == {"a": {"0": 0, "1": 2}, "b": {"0": 3}}
    assert STOOD.begun(ids) == {TopicPartition("b", 0): 3}


def test_a_log_that_ends_before_is_truncated() -> None:
    shorter = {**BOUNDS, TopicPartition("b", 0): (0, 2)}
    with pytest.raises(SourceLost, match="b-0: the log was truncated: it ends at 2, and offset 3"):
        restarts_of(STOOD, STOOD.ids, shorter, fail=True)
    assert restarts_of(STOOD, STOOD.ids, shorter, fail=False) == {"b": {"0": 0}}
