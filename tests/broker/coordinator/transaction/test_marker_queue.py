"""MarkerQueue: each marker goes to the current leader until committed, one attempt at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.coordinator.transaction.coordinated_transaction import Ending
from streamlog.broker.coordinator.transaction.marker_queue import (
    RETRY_MS,
    RETRY_MS_MAX,
    MarkerJob,
    MarkerQueue,
    Try,
)
from streamlog.protocol.error_codes import ErrorCode

A, B, C = ("a", 0), ("a", 1), ("b", 0)


def job(*targets: tuple[str, int], shard: int = 0, producer_id: int = 7) -> MarkerJob:
    ending = Ending(f"id-{producer_id}", producer_id, 3, True, frozenset(targets))
    return MarkerJob(ending, shard, 5)


def test_each_broker_gets_one_request_at_a_time() -> None:
    queue = MarkerQueue()
    queue.add(job(A, B, C), 0)
    tries = queue.take({A: 1, B: 2, C: 1}.get, 0)
    assert [(each.node_id, each.partitions) for each in tries] == [(1, (A, C)), (2, (B,))]
    assert queue.take({A: 1, B: 2, C: 1}.get, 10_000) == []
    assert queue.next_deadline_ms() is None
    for each in tries:
        for target in each.partitions:
            assert queue.take_complete() == []
            queue.on_code(each.number, target, ErrorCode.NONE, 1)
    assert queue.take_complete() == [job(A, B, C)]
    assert len(queue) == 0


def test_a_marker_is_retried_at_the_new_leader() -> None:
    queue = MarkerQueue()
    queue.add(job(A), 0)
    (first,) = queue.take({A: 1}.get, 0)
    queue.on_code(first.number, A, ErrorCode.NOT_LEADER_OR_FOLLOWER, 10)
    assert queue.take({A: 2}.get, 10) == []
    assert queue.next_deadline_ms() == 10 + RETRY_MS
    (second,) = queue.take({A: 2}.get, 10 + RETRY_MS)
    assert second.node_id == 2


def test_retry_pauses_grow_up_to_the_maximum() -> None:
    queue, now_ms, pauses = MarkerQueue(), 0, []
    queue.add(job(A), 0)
    for _ in range(8):
        assert queue.take({A: -1}.get, now_ms) == []
        due_ms = queue.next_deadline_ms()
        assert due_ms is not None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert pauses[-1] == RETRY_MS_MAX


def test_a_deleted_partition_and_a_fenced_marker_count_as_done() -> None:
    queue = MarkerQueue()
    queue.add(job(A, B), 0)
    (only,) = queue.take({B: 1}.get, 0)
    queue.on_code(only.number, B, ErrorCode.TRANSACTION_COORDINATOR_FENCED, 0)
    assert queue.take_complete() == [job(A, B)]


def test_results_for_a_forgotten_shard_are_ignored() -> None:
    queue = MarkerQueue()
    queue.add(job(A, shard=0), 0)
    queue.add(job(A, shard=1, producer_id=8), 0)
    first, second = queue.take({A: 1}.get, 0)
    queue.forget(0)
    queue.on_code(first.number, A, ErrorCode.NONE, 0)
    assert queue.take_complete() == []
    queue.add(job(A, shard=0), 0)
    (again,) = queue.take({A: 1}.get, 0)
    assert again.number not in (first.number, second.number)


@given(data=st.data())
def test_every_marker_is_written_and_never_sent_twice_at_once(data: st.DataObject) -> None:
    queue, now_ms = MarkerQueue(), 0
    jobs = [
        job(*data.draw(st.sets(st.sampled_from([A, B, C]), min_size=1)), producer_id=number)
        for number in range(data.draw(st.integers(1, 4)))
    ]
    for each in jobs:
        queue.add(each, now_ms)
    under_way: list[tuple[Try, tuple[str, int]]] = []
    written: dict[int, set[tuple[str, int]]] = {n: set() for n in range(len(jobs))}
    done: list[MarkerJob] = []
    for _ in range(data.draw(st.integers(0, 30))):
        leaders = {target: data.draw(st.integers(-1, 2)) for target in (A, B, C)}
        for each in queue.take(leaders.get, now_ms):
            for target in each.partitions:
                assert leaders[target] == each.node_id
                assert (each.number, target) not in [(t.number, p) for t, p in under_way]
                under_way.append((each, target))
        if under_way:
            each, target = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            code = data.draw(
                st.sampled_from([ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE])
            )
            if code is ErrorCode.NONE:
                written[each.job.ending.producer_id].add(target)
            queue.on_code(each.number, target, code, now_ms)
        now_ms += data.draw(st.integers(0, 500))
        done += queue.take_complete()
    while len(queue):
        for each, target in under_way:
            queue.on_code(each.number, target, ErrorCode.NONE, now_ms)
            written[each.job.ending.producer_id].add(target)
        under_way = [
            (each, target) for each in queue.take(lambda _: 1, now_ms) for target in each.partitions
        ]
        now_ms += RETRY_MS_MAX
        done += queue.take_complete()
    assert sorted(each.ending.producer_id for each in done) == list(range(len(jobs)))
    assert [written[n] for n in range(len(jobs))] == [set(j.ending.partitions) for j in jobs]
