"""Agents that fail on records: restarted by every policy, without lost or repeated records."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlog import App, ErrorPolicy, ProcessingError, Record, Stream, Topic, on_error
from streamlog.processing.error_handling import ATTEMPT, MESSAGE, NODE, OFFSET, TOPIC

BAD = 13
RETRY = on_error.retry(2, backoff="10ms", then=on_error.dlq())


def check(value: int) -> int:
    if value == BAD:
        raise ValueError("unlucky")
    return value


def app_with(
    policy: ErrorPolicy | None, concurrency: int = 1
) -> tuple[App, Topic[str, int], list[int]]:
    app = App("app", on_error=on_error.skip())
    source = app.topic("in", key=str, value=int)
    seen: list[int] = []

    @app.agent(source, on_error=policy, concurrency=concurrency)
    async def see(stream: Stream[str, int]) -> None:
        async for value in stream:
            seen.append(value)
            check(value)

    return app, source, seen


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(("policy", "times"), [(None, 1), (on_error.dlq(), 1), (RETRY, 3)])
def test_good_records_are_handled_once_among_failing_ones(
    policy: ErrorPolicy | None, times: int, concurrency: int
) -> None:
    app, source, seen = app_with(policy, concurrency)
    values = [1, BAD, 2, 3, BAD, 4]
    with app.test() as t:
        for value in values:
            t.input(source).send(value, key="k")
        assert seen == [
            each for value in values for each in [value] * (times if value == BAD else 1)
        ]
        reason = "error" if policy is None else "dead letter"
        assert t.drops == {("see", reason): 2}
        if policy is not None:
            assert [letter.value for letter in t.dead_letters()] == [BAD.to_bytes(8)] * 2
        t.restart()
        t.input(source).send(5, key="k")
        assert seen[-2:] == [4, 5]


def test_failing_records_in_a_large_batch_are_skipped() -> None:
    app, _, seen = app_with(None)
    values = [BAD if number % 7 == 0 else number for number in range(300)]
    with app.test() as t:
        topic = t.topic("in")
        for value in values:
            topic.append(value.to_bytes(8), key=b"k", timestamp_ms=0)
        t.settle()
        assert seen == values
        assert t.drops == {("see", "error"): values.count(BAD)}


def test_a_dead_letter_describes_the_failure() -> None:
    app, source, _ = app_with(RETRY)
    with app.test() as t:
        t.input(source).send(BAD, key="k")
        (letter,) = t.dead_letters()
    headers = dict(letter.headers)
    assert (headers[TOPIC], headers[OFFSET], headers[NODE]) == (b"in", b"0", b"see")
    assert (headers[MESSAGE], headers[ATTEMPT]) == (b"unlucky", b"3")


def test_unreadable_records_do_not_end_the_function() -> None:
    app, source, seen = app_with(on_error.retry(1, backoff="1ms", then=on_error.dlq()))
    with app.test() as t:
        topic = t.topic("in")
        for raw in (b"?", (1).to_bytes(8), b"?", b"?", (2).to_bytes(8), b"?"):
            topic.append(raw, key=b"k", timestamp_ms=0)
        t.settle()
        assert seen == [1, 2]
        assert [letter.value for letter in t.dead_letters()] == [b"?"] * 4
        t.input(source).send(3, key="k")
        assert seen == [1, 2, 3]


def test_unreadable_keys_and_times_become_dead_letters() -> None:
    app = App("app", on_error=RETRY)
    source = app.topic("in", key=int, value=int, timestamp=check)
    seen: list[tuple[int | None, int]] = []

    @app.agent(source)
    async def see(stream: Stream[int, int]) -> None:
        async for record in stream.records():
            value = record.value
            seen.append((record.key, value))

    with app.test() as t:
        topic = t.topic("in")
        for key, value in ((b"?", 1), (b"\0" * 8, 2), (b"\0" * 8, BAD), (None, 3)):
            topic.append(value.to_bytes(8), key=key, timestamp_ms=0)
        t.settle()
        assert seen == [(0, 2), (None, 3)]
        assert [letter.value for letter in t.dead_letters()] == [
            (1).to_bytes(8),
            BAD.to_bytes(8),
        ]


def test_a_list_is_retried_and_skipped_as_a_whole() -> None:
    app = App("app")
    source = app.topic("in", key=str, value=int, partitions=2)
    seen: list[list[int]] = []

    @app.agent(source, on_error=on_error.retry(1, backoff="0ms", then=on_error.skip()))
    async def see(stream: Stream[str, int]) -> None:
        async for records in stream.take(2, within="10s"):
            seen.append([record.value for record in records])
            check(records[0].value)

    with app.test() as t:
        for value in (1, 2, BAD, 3, 4, 5):
            t.input(source).send(value, key=str(value % 2))
        assert [sorted(each) for each in seen] == [[1, 2], [3, BAD], [3, BAD], [4, 5]]
        assert t.drops == {("see", "error"): 2}


def test_values_yielded_for_a_failed_record_are_discarded() -> None:
    app = App("app")
    source = app.topic("in", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    attempts: list[int] = []

    @app.agent(source, sink=out, on_error=on_error.retry(1, then=on_error.skip()))
    async def double(stream: Stream[str, int]) -> AsyncIterator[int]:
        async for value in stream:
            attempts.append(value)
            yield value
            if attempts.count(value) == 1 and value == 2:
                raise OSError("not now")
            check(value)
            yield -value

    with app.test() as t:
        for value in (1, 2, BAD, 3):
            t.input(source).send(value, key="k")
        assert t.output(out).values == [1, -1, 2, -2, 3, -3]


def test_a_failure_without_a_fallback_ends_the_worker() -> None:
    app, source, _ = app_with(on_error.retry(1, backoff="0ms"))
    with app.test() as t, pytest.raises(ProcessingError) as caught:
        t.input(source).send(BAD, key="k")
    assert (caught.value.topic, caught.value.offset, caught.value.node) == ("in", 0, "see")


def test_a_function_that_fails_before_its_first_record_ends_the_worker() -> None:
    app = App("app", on_error=on_error.skip())
    source = app.topic("in", key=str, value=int)
    calls: list[Record[str, int]] = []

    @app.agent(source)
    async def see(stream: Stream[str, int]) -> None:
        if calls:
            raise ValueError("at once")
        async for record in stream.records():
            calls.append(record)
            raise ValueError("later")

    with app.test() as t, pytest.raises(ProcessingError, match="at once"):
        t.input(source).send(1, key="k")
