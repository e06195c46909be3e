"""Joins of streams: rules one by one, and random histories against nested loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, JoinWindow, ProcessingError, Stream, Windowed, on_error, tumbling
from streamlog.durations import when_ms
from streamlog.nodes.stream_nodes import How
from streamlog.processing.outbox import SinkRecord
from streamlog.windows.definitions import Tumbling
from tests.processing.test_exactness import Cluster, starts_of

WINDOW = JoinWindow(before_ms=7, after_ms=3, grace_ms=2)
FAR_MS = 1_000
Records = list[tuple[str, str | None, str | None, int]]
"""Topic, key, value, timestamp."""
Input = list[tuple[str, int, str, int]]
"""Topic, partition, key, timestamp."""


def text(left: object, right: object) -> str:
    return f"{left}-{right}"


class Pairs:
    """An app that joins two topics."""

    def __init__(
        self,
        how: How,
        window: JoinWindow = WINDOW,
        *,
        fn: Callable[[Any, Any], str] = text,
        policy: Any = on_error.FAIL,
    ) -> None:
        self.app = App("pairs", on_error=policy)
        self.left = self.app.topic("left", key=str, value=str)
        self.right = self.app.topic("right", key=str, value=str)
        self.out = self.app.topic("out", key=str, value=str)
        self.how = how
        left_stream, right_stream = self.app.stream(self.left), self.app.stream(self.right)
        self.joined(left_stream, right_stream, window, "pairs", fn).to(self.out)

    def joined(
        self, left_stream: Any, right_stream: Any, window: JoinWindow, name: str, fn: Any = text
    ) -> Stream[str, str]:
        method = {"inner": "join", "left": "left_join", "outer": "outer_join"}[self.how]
        pairs: Stream[str, str] = getattr(left_stream, method)(
            right_stream, fn, within=window, name=name
        )
        return pairs

    def outputs_of(self, records: Records) -> list[str]:
        """Return the output values for these records."""
        topics = {"left": self.left, "right": self.right}
        with self.app.test() as t:
            for topic, key, value, at in records:
                t.input(topics[topic]).send(cast("str", value), key=key, at=at)
            return t.output(self.out).values


def test_an_unmatched_record_is_emitted_once_after_its_window() -> None:
    def outputs_of(records: Records) -> list[str]:
        return Pairs("left", JoinWindow.of("10ms", grace="5ms")).outputs_of(records)

    records: Records = [("left", "a", "1", 100), ("left", "b", "2", 101), ("right", "b", "x", 105)]
    assert outputs_of([*records, ("left", "c", "3", 115)]) == ["2-x"]
    assert outputs_of([*records, ("left", "c", "3", 116)]) == ["2-x", "1-None"]
    late: Records = [("right", "a", "y", 106), ("right", "a", "z", 130)]
    assert outputs_of([*records, ("left", "c", "3", 116), *late]) == ["2-x", "1-None", "1-y"]


def test_buffered_records_survive_a_restart() -> None:
    pairs = Pairs("outer", JoinWindow.of("10ms"))
    left, right, out = pairs.left, pairs.right, pairs.out
    with pairs.app.test() as t:
        t.input(left).send("1", key="a", at=100)
        t.input(right).send("x", key="b", at=101)
        t.restart()
        t.input(right).send("y", key="a", at=102)
        t.restart()
        t.input(left).send("2", key="z", at=200)
        t.restart()
        assert t.output(out).values == ["1-y", "None-x"]
        assert [when_ms(r.timestamp) for r in t.output(out).records] == [102, 101]


def test_a_null_key_is_unmatched_and_a_null_value_is_dropped() -> None:
    records: Records = [
        ("left", None, "1", 100), ("right", None, "x", 100), ("left", "a", None, 100)
    ]  # fmt: skip
    assert Pairs("outer").outputs_of(records) == ["1-None", "None-x"]
    assert Pairs("left").outputs_of(records) == ["1-None"]
    pairs = Pairs("inner")
    with pairs.app.test() as t:
        t.input(pairs.left).send("1", at=1)
        t.input(pairs.right).send(cast("str", None), key="a", at=2)
        assert t.drops == {("pairs", "null key"): 1, ("pairs", "null value"): 1}


def test_the_error_policy_decides_on_a_pair_that_fails() -> None:
    def refuse(left: str, right: str | None) -> str:
        assert right != "bad"
        return text(left, right)

    records: Records = [
        ("right", "a", "bad", 1), ("right", "a", "good", 1), ("left", "a", "1", 2)
    ]  # fmt: skip
    assert Pairs("left", fn=refuse, policy=on_error.skip()).outputs_of(records) == ["1-good"]
    with pytest.raises(ProcessingError, match="'pairs' failed at offset 0 of left-0"):
        Pairs("left", fn=refuse).outputs_of(records)


def test_an_unmatched_record_keeps_its_own_headers() -> None:
    topology = Pairs("left", JoinWindow.of("5ms")).app.topology()
    cluster = Cluster(topology, dict.fromkeys(("left", "right", "out"), 1), Random(0))
    for at, headers in ((1, (("from", b"here"),)), (100, ())):
        cluster.append("left", 0, SinkRecord("left", 0, at, b"a", b"1", headers))
    cluster.run(crashes=0)
    assert [record.headers for record in cluster.logs["out", 0]] == [(("from", b"here"),)]


def test_a_stream_can_be_joined_with_itself() -> None:
    app = App("self")
    words, out = app.topic("words", key=str, value=str), app.topic("out", key=str, value=str)
    stream = app.stream(words)
    stream.join(stream, text, within="5ms", name="twins").to(out)
    with app.test() as t:
        t.input(words).send("1", key="a", at=1)
        t.input(words).send("2", key="a", at=4)
        assert t.output(out).values == ["1-1", "2-1", "1-2", "2-2"]


# Random histories


def ordered(inputs: Input, partition: int) -> list[tuple[int, int, int, str, int, str]]:
    """Return a partition's records: stream time, rank, number, key, timestamp, value."""
    entries: list[tuple[int, int, int, str, int, str]] = []
    for rank, topic in enumerate(("left", "right")):
        time_ms = -1
        mine = [each for each in inputs if each[:2] == (topic, partition)]
        for number, (_, _, key, at) in enumerate(mine):
            time_ms = max(time_ms, at)
            entries.append((time_ms, rank, number, key, at, f"{topic[0]}{partition}{number}"))
    return sorted(entries)


def oracle(inputs: Input, partitions: int, how: How, window: JoinWindow) -> Counter[Any]:
    """Compute rows by nested loops: key, value, timestamp; and how many records are late."""
    outer = {"inner": (), "left": (0,), "outer": (0, 1)}[how]
    rows: Counter[Any] = Counter()
    for partition in range(partitions):
        seen: list[tuple[int, str, int, str]] = []
        alone: dict[str, tuple[int, int, str, int]] = {}
        for now_ms, rank, _, key, at, value in ordered(inputs, partition):
            for name, (closes_ms, side, own, own_at) in list(alone.items()):
                if closes_ms < now_ms:
                    del alone[name]
                    rows[own, text(name, None) if side == 0 else text(None, name), own_at] += 1
            matched = False
            for side, own, own_at, name in seen:
                left, right = (own_at, at) if side == 0 else (at, own_at)
                near = left - window.before_ms <= right <= left + window.after_ms
                if side == rank or own != key or not near or own_at + window.keep_ms < now_ms:
                    continue
                matched = True
                alone.pop(name, None)
                rows[
                    key, text(*((name, value) if side == 0 else (value, name))), max(at, own_at)
                ] += 1
            seen.append((rank, key, at, value))
            closes_ms = at + (window.after_ms if rank == 0 else window.before_ms) + window.grace_ms
            if not matched and rank not in outer:
                rows += Counter(late=closes_ms < now_ms)
            elif not matched:
                if closes_ms < now_ms:
                    rows[key, text(value, None) if rank == 0 else text(None, value), at] += 1
                else:
                    alone[value] = (closes_ms, rank, key, at)
    return rows


def run_cluster(app: App, inputs: Input, partitions: int, *, seed: int, crashes: int) -> Cluster:
    names = ("left", "right", "out", "counts")
    cluster = Cluster(app.topology(), dict.fromkeys(names, partitions), Random(seed))
    numbers: Counter[tuple[str, int]] = Counter()
    for topic, partition, key, at in inputs:
        number, numbers[topic, partition] = numbers[topic, partition], numbers[topic, partition] + 1
        value = f"{topic[0]}{partition}{number}".encode()
        cluster.append(topic, partition, SinkRecord(topic, partition, at, key.encode(), value))
    cluster.run(crashes=crashes)
    return cluster


def out_rows(cluster: Cluster) -> Counter[Any]:
    rows: Counter[Any] = +Counter(late=cluster.drops["pairs", "late"])
    for (topic, _), log in cluster.logs.items():
        for record in log if topic == "out" else ():
            rows[
                (record.key or b"").decode(), (record.value or b"").decode(), record.timestamp_ms
            ] += 1
    return rows


histories = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.integers(0, 1),
        st.sampled_from(["a", "b"]),
        st.integers(0, 60),
    ),
    max_size=40,
)
windows = st.sampled_from(
    [WINDOW, JoinWindow.of("0ms"), JoinWindow(before_ms=-2, after_ms=9), JoinWindow.of("5ms")]
)
hows = st.sampled_from(["inner", "left", "outer"])


@given(histories, hows, windows, st.integers(0, 10_000))
def test_a_stream_join_matches_a_nested_loop_join(
    inputs: Input, how: How, window: JoinWindow, seed: int
) -> None:
    inputs = [*inputs, *((topic, p, "end", FAR_MS) for topic in ("left", "right") for p in (0, 1))]
    wanted = oracle(inputs, 2, how, window)
    app = Pairs(how, window).app
    assert out_rows(run_cluster(app, inputs, 2, seed=seed, crashes=0)) == wanted
    # Sinks may repeat a row after a crash (no transactions), but never with another value.
    repeated = out_rows(run_cluster(Pairs(how, window).app, inputs, 2, seed=seed, crashes=8))
    assert Counter(set(repeated)) == Counter(set(wanted))


def counted_app(how: How, size: Tumbling) -> App:
    """Count pairs per window behind a repartition: each pair must come exactly once."""
    made = Pairs(how)
    counts = made.app.topic("counts", key=Windowed[str], value=int)
    ones = made.app.stream(made.left).rekey(lambda key, _: key, name="ones")
    others = made.app.stream(made.right).rekey(lambda key, _: key, name="others")
    pairs = made.joined(ones, others, WINDOW, "rekeyed")
    by_key = pairs.group_by(lambda key, _: key, name="by-key")
    by_key.windowed(size).count(name="counts").changes().to(counts)
    return made.app


@given(histories, hows, st.integers(0, 10_000))
def test_counts_of_pairs_are_exact_across_crashes(inputs: Input, how: How, seed: int) -> None:
    ends = [(topic, p, "end", FAR_MS) for topic in ("left", "right") for p in (0, 1)]
    inputs = [*inputs, *ends, *((t, p, "end", FAR_MS * 3) for t, p, _, _ in ends)]
    found = []
    for crashes in (0, 12):
        app = counted_app(how, tumbling("10ms", grace="500ms"))
        cluster = run_cluster(app, inputs, 2, seed=seed, crashes=crashes)
        rows: Counter[Any] = Counter()
        for (topic, _), log in cluster.logs.items():
            for record in log if topic == "counts" else ():
                key = starts_of(tumbling("10ms")).loads(record.key or b"")
                if key.key != "end":
                    rows[key, record.value, record.timestamp_ms] += 1
        found.append(Counter(set(rows)))
        assert not cluster.drops["counts", "late"]
    assert found[0] == found[1]


def test_the_window_can_change_at_a_restart() -> None:
    def cluster_after(first: JoinWindow, second: JoinWindow) -> Counter[Any]:
        cluster = Cluster(
            Pairs("left", first).app.topology(),
            dict.fromkeys(("left", "right", "out"), 1),
            Random(0),
        )
        cluster.append("left", 0, SinkRecord("left", 0, 100, b"a", b"1"))
        cluster.run(crashes=0)
        cluster.subs = {
            task_id: Pairs("left", second).app.topology().subtopologies[task_id.subtopology]
            for task_id in cluster.subs
        }
        cluster.tasks = {task_id: cluster.start(task_id) for task_id in cluster.subs}
        cluster.append("right", 0, SinkRecord("right", 0, 130, b"a", b"x"))
        cluster.append("left", 0, SinkRecord("left", 0, 140, b"b", b"2"))
        cluster.run(crashes=0)
        return out_rows(cluster)

    near, far = JoinWindow.of("10ms"), JoinWindow.of("35ms")
    assert cluster_after(near, near) == {("a", "1-None", 100): 1}
    assert cluster_after(near, far) == {("a", "1-x", 130): 1}
    assert cluster_after(far, near) == {("a", "1-None", 100): 1}
    assert cluster_after(far, far) == {("a", "1-x", 130): 1}
