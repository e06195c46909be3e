"""What a sink's group commits beside its offsets."""

from __future__ import annotations

import pytest

from streamlog.connect.sink_progress import WriteRange
from streamlog.worker.connect.sink_group import name_topic, split_topic

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("metadata", ["", WriteRange(220, "9f31c2aa").encode()])
def test_an_offset_names_its_topic(metadata: str) -> None:
    named = name_topic(metadata, TOPIC_ID)
    assert named.startswith("streamlog:")
    assert split_topic(named) == (metadata, TOPIC_ID)


@pytest.mark.parametrize("metadata", ["", "note", "streamlog:until=220,config=9f31c2aa"])
def test_an_offset_without_a_topic_is_taken_as_it_is(metadata: str) -> None:
    assert name_topic(metadata, bytes(16)) == metadata
    assert split_topic(metadata) == (metadata, b"")
