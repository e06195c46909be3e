"""The waits of connectors between attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.retries import WITHOUT_END, Backoff, RecordRetries, RecordRetry


def test_waits_double_up_to_the_limit() -> None:
    backoff = Backoff(wait_ms_max=2_000)
    assert [backoff.fail(0) for _ in range(5)] == [300, 600, 1_200, 2_000, 2_000]
    assert backoff.failures == 5
    backoff.succeed()
    assert backoff.fail(0) == 300


def test_chance_takes_off_a_fifth_at_most() -> None:
    assert Backoff().fail(1) == 240
    assert Backoff().fail(0.5) == 270


def test_a_wait_that_was_asked_for_is_honoured_beyond_the_limit() -> None:
    assert Backoff(wait_ms_max=1_000).fail(0.5, at_least_ms=3_600_000) == 3_600_000
    backoff = Backoff()
    for _ in range(100):
        assert backoff.fail(1, at_least_ms=1) <= 60_000
    assert backoff.fail(0) == 60_000
    assert Backoff(wait_ms_max=0).fail(0.5) == 0
    days = Backoff(wait_ms_max=10**12)
    assert max(days.fail(0) for _ in range(99)) == 10**12, "however long the limit is"
    assert WITHOUT_END == -1, "as Kafka Connect writes it"


def test_a_record_is_tried_again_until_its_time_is_over_as_in_kafka_connect() -> None:
    # The waits of RetryWithToleranceOperatorTest.testBackoffLimit in Apache Kafka.
    retry = RecordRetry(RecordRetries(timeout_ms=5_000, wait_ms_max=10_000))
    now_ms, waits = 1_000, []
    while (wait_ms := retry.fail(now_ms, 0.5)) is not None:
        waits.append(wait_ms)
        now_ms += wait_ms
    assert waits == [300, 600, 1_200, 2_400, 500]
    # The next record has the whole time again.
    assert retry.fail(now_ms, 0.5) == 300
    assert RecordRetry(RecordRetries()).fail(0, 0.5) is None


def test_chance_draws_the_waits_behind_the_limit_alone() -> None:
    retry = RecordRetry(RecordRetries(timeout_ms=WITHOUT_END, wait_ms_max=600))
    assert [retry.fail(0, 0.25) for _ in range(4)] == [300, 600, 150, 150]


def test_success_gives_the_next_record_the_whole_time() -> None:
    retry = RecordRetry(RecordRetries(timeout_ms=400))
    assert [retry.fail(0, 0), retry.fail(300, 0)] == [300, 100]
    retry.succeed()
    assert retry.fail(10_000, 0) == 300


@given(
    st.integers(1, 10**9),
    st.integers(1, 10**6),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 10**5)), max_size=60),
    st.booleans(),
)
def test_no_wait_is_over_the_limits(
    timeout_ms: int, longest_ms: int, steps: list[tuple[float, int]], endless: bool
) -> None:
    retry = RecordRetry(RecordRetries(WITHOUT_END if endless else timeout_ms, longest_ms))
    now_ms = 0
    for chance, call_ms in steps:
        wait_ms = retry.fail(now_ms, chance)
        if wait_ms is None:
            assert not endless
            assert now_ms >= timeout_ms
            return
        assert 0 <= wait_ms <= longest_ms
        assert endless or now_ms + wait_ms <= timeout_ms
        now_ms += wait_ms + call_ms
