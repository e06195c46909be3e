"""The dealing of parts as text, and what a round's slots read."""

from __future__ import annotations

from streamlog.connect.herding.configs import TASK_PARTS, ConnectConfigs
from streamlog.worker.connect.source_slots import (
    all_slots,
    decode_parts,
    encode_parts,
    slots_of,
)


def test_parts_survive_the_configs_topic() -> None:
    parts = [{"table": "orders"}, {"b": 1, "a": [None, {"x": 1.5}]}]
    assert decode_parts({TASK_PARTS: encode_parts(parts)}) == parts  # type: ignore[arg-type]
    assert decode_parts({}) == []
    assert decode_parts({TASK_PARTS: "nonsense"}) == []


def test_slots_of_tasks_that_a_dealing_no_longer_has_are_left_out() -> None:
    configs = ConnectConfigs()
    configs.tasks["s"] = [{TASK_PARTS: '[{"n":0}]'}, {TASK_PARTS: '[{"n":1},{"n":2}]'}]
    found = slots_of({"s": [1, 2], "gone": [0]}, configs)
    assert found == {("s", 1): [{"n": 1}, {"n": 2}]}


def test_all_slots_have_the_parts_that_tasks_may_commit_for() -> None:
    configs = ConnectConfigs()
    configs.tasks["s"] = [{TASK_PARTS: '[{"n":1}]'}]
    # Part 0 has vanished, so task 1 has ended and task 0 has its part: neither keeps what it had.
    assert all_slots(configs) == {("s", 0): [{"n": 1}]}
