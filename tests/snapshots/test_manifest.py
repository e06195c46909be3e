"""A task's progress, translated to the offsets and topic names of another log."""

from __future__ import annotations

from random import Random

import pytest

from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.repartition_input import MergedInput, RepartitionInput
from streamlog.processing.outbox import Collector
from streamlog.processing.provenance import BUSY_MS
from streamlog.serdes import serde_for
from streamlog.snapshots.manifest import Landing
from streamlog.tables.state.changelog import TaskProgress

TOPIC = "shop-by-name-repartition"
ABOVE = "shop-by-age-repartition"
SOURCES = [("sales", 0), (ABOVE, 1)]


def task_progress(position: int = 40) -> TaskProgress:
    rows = [
        ["sales", 0, 17, 2, 5_000, 0, position, 5_500],
        [ABOVE, 1, 9, 0, 4_000, BUSY_MS, position + 3, 4_000],
    ]
    merged = {"time_ms": 4_000, "turn_ms": 4_500, "sources": rows, "sequence": 12}
    return TaskProgress(
        offsets={("sales", 0): 18, (TOPIC, 0): position},
        sections={"inputs": {TOPIC: merged, "sales": {"time_ms": 7}}, "windows": {"w": [1]}},
    )


def landing(new_id: str = "shop", **settings: bool) -> Landing:
    positions = {(f"{new_id}-by-name-repartition", 0): 100}
    return Landing(app_id="shop", new_id=new_id, positions=positions, era=3, **settings)


def repartition_spec(topic: str) -> TopicSpec:
    return TopicSpec(topic, serde_for(str), serde_for(int), internal=True)


@pytest.mark.parametrize("new_id", ["shop", "shop-v2"])
def test_positions_of_repartition_topics_are_mapped_to_the_new_log(new_id: str) -> None:
    progress = landing(new_id).rebased(task_progress(), 0)
    topic, second_topic = f"{new_id}-by-name-repartition", f"{new_id}-by-age-repartition"
    assert progress.offsets == {("sales", 0): 18, (topic, 0): 100}
    assert progress.sections["era"] == 3
    assert progress.sections["windows"] == {"w": [1]}
    inputs = progress.sections["inputs"]
    assert isinstance(inputs, dict)
    assert inputs["sales"] == {"time_ms": 7}
    assert inputs[topic] == {
        "time_ms": 4_000,
        "turn_ms": 4_500,
        "sequence": 12,
        "sources": [
            ["sales", 0, 17, 2, 5_000, BUSY_MS, 100, 5_500],
            [second_topic, 1, 9, 0, 4_000, BUSY_MS, 103, 4_000],
        ],
    }


def test_no_source_counts_as_ended_after_a_hand_over() -> None:
    progress = landing().rebased(task_progress(), 0)
    entry = MergedInput(repartition_spec(TOPIC), 0, 0, sources=SOURCES, collector=Collector())
    entry.load(progress.sections["inputs"][TOPIC])  # type: ignore[index]
    entry.start_at(progress.offsets[TOPIC, 0])
    assert not entry.is_at_end()
    assert entry.floor() == (4_500, 0)
    assert entry.source_times() == [(("sales", 0), 5_000, 0), ((ABOVE, 1), 4_000, 0)]


def test_at_least_once_keeps_times_but_not_positions_of_a_history() -> None:
    progress = landing(merges=False).rebased(task_progress(), 0)
    entry = RepartitionInput(
        repartition_spec(TOPIC), 0, 0, sources=SOURCES, idle_after_ms=None, collector=Collector()
    )
    entry.load(progress.sections["inputs"][TOPIC])  # type: ignore[index]
    assert entry.time_ms == 4_000
    rows = entry.to_data()["sources"]
    assert rows == [["sales", 0, 17, 2, 5_000, 0], [ABOVE, 1, -1, 0, 4_000, 0]]


def test_progress_without_repartition_inputs_is_unchanged() -> None:
    rng = Random(1)
    offsets = {(f"topic-{n}", n): rng.randrange(100) for n in range(5)}
    progress = landing("other").rebased(TaskProgress(offsets=offsets), 0)
    assert progress == TaskProgress(offsets=offsets, sections={"inputs": {}, "era": 3})


def test_an_unread_repartition_topic_is_read_from_its_end() -> None:
    progress = landing().rebased(TaskProgress(offsets={("sales", 0): 18}), 0, ["sales", TOPIC])
    assert progress.offsets == {("sales", 0): 18, (TOPIC, 0): 100}
    # Task 1 does not read the topic, which has only one partition.
    progress = landing().rebased(TaskProgress(offsets={("sales", 1): 18}), 1, ["sales", TOPIC])
    assert progress.offsets == {("sales", 1): 18}
