"""The dealing of parts as text."""

from __future__ import annotations

from streamlog.connect.herding.configs import TASK_PARTS
from streamlog.worker.connect.source_slots import decode_parts


def test_parts_survive_the_configs_topic() -> None:
    parts = [{"table": "orders"}, {"b": 1, "a": [None, {"x": 1.5}]}]
    text = '[{"table": "orders"}, {"b": 1, "a": [null, {"x": 1.5}]}]'
    assert decode_parts({TASK_PARTS: text}) == parts
    assert decode_parts({}) == []
    for malformed in ("nonsense", '[{"a":' + "[" * 100_000):
        assert decode_parts({TASK_PARTS: malformed}) == []
