"""The watchdog finds stalled tasks by their positions and reports them at growing intervals."""

from __future__ import annotations

from streamlog.record import TopicPartition
from streamlog.worker.health.watchdog import Sight, Watchdog

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def sight(at: int, lag: int, other: int = 0) -> Sight:
    return Sight({A: at, B: other}, {A: lag, B: 0})


def test_a_task_without_progress_is_reported_after_the_limit() -> None:
    dog = Watchdog(1_000)
    assert dog.look({"task 0_0": sight(5, 3)}, 0) == []
    assert dog.look({"task 0_0": sight(5, 3)}, 999) == []
    (stall,) = dog.look({"task 0_0": sight(5, 4)}, 1_000)
    assert (
        stall.describe()
        == "task 0_0 has made no progress for 1 s: a-0 at offset 5, 4 records behind"
    )
    assert not stall.is_over


def test_a_stall_is_reported_again_at_doubling_intervals() -> None:
    dog = Watchdog(1_000)
    reported_ms = [ms for ms in range(0, 20_000, 500) if dog.look({"t": sight(5, 3)}, ms)]
    assert reported_ms == [1_000, 2_000, 4_000, 8_000, 16_000]


def test_progress_or_no_lag_resets_the_limit() -> None:
    dog = Watchdog(1_000)
    for ms in range(0, 10_000, 500):
        assert dog.look({"t": sight(5, 3, other=ms)}, ms) == []
    for ms in range(10_000, 20_000, 500):
        assert dog.look({"t": sight(5, 0)}, ms) == []
    assert dog.look({"t": sight(5, 1)}, 20_000) == []
    assert dog.look({"t": sight(5, 1)}, 20_500)


def test_each_task_has_its_own_limit() -> None:
    dog = Watchdog(1_000)
    dog.look({"one": sight(5, 3)}, 0)
    dog.look({"one": sight(5, 3), "two": sight(1, 1)}, 600)
    assert [stall.who for stall in dog.look({"one": sight(5, 3), "two": sight(1, 1)}, 1_000)] == [
        "one"
    ]
    assert dog.stalled(1_050) == {"one": 1_050}
    # A task that was away starts again.
    dog.look({"two": sight(1, 1)}, 1_100)
    assert [stall.who for stall in dog.look({"one": sight(5, 3), "two": sight(1, 1)}, 1_600)] == [
        "two"
    ]


def test_a_stall_becomes_final_after_the_exit_limit() -> None:
    dog = Watchdog(1_000, 3_000)
    looks = [dog.look({"t": sight(5, 3)}, ms) for ms in range(0, 3_500, 500)]
    assert [stall.is_over for found in looks for stall in found] == [False, False, True]
