"""Connectors in the test driver: given records, real sources, sinks as lists, and failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, on_error
from streamlog.connect import (
    BadRecord,
    Read,
    Retriable,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.errors import ProcessingError, UsageError
from streamlog.record import Record


@dataclass
class Hit:
    path: str
    status: int


class Lines(Source[None, bytes], frozen=True, kw_only=True):
    lines: tuple[bytes, ...] = ()
    every: str = "1s"

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        at = 0 if offset is None else offset["at"]
        assert isinstance(at, int)
        while at < len(self.lines):
            yield Read.raw([self.lines[at]], {"at": at + 1})
            at += 1
            await context.sleep(self.every)


class Parts(Source[str, int], frozen=True, kw_only=True):
    """Two parts of a plain generator, which runs in a thread."""

    async def partitions(self, context: SourceContext) -> list[SourcePartition]:
        return [{"table": "a"}, {"table": "b"}]

    def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> Iterator[Read[str, int]]:
        for number in range(0 if offset is None else int(str(offset["at"])), 3):
            table = str(partition["table"])
            yield Read([context.record(number, key=table, topic=table)], {"at": number + 1})


class Nowhere(Sink[str, object], frozen=True, kw_only=True):
    def open(self, context: SinkContext) -> SinkTask[str, object]:
        raise AssertionError("a test runs nothing outside")


def parsed(line: bytes) -> Hit:
    path, status = line.decode().split()
    return Hit(path, int(status))


def an_app(**sink: Any) -> tuple[App, Any, Any]:
    app = App("web", on_error=on_error.dlq())
    lines = app.topic("access-log", key=str, value=bytes)
    per_path = app.topic("per-path", key=str, value=Hit)
    app.source(lines, Lines(lines=(b"/a 200", b"/b 500", b"/c 404")), name="nginx")
    hits = app.stream(lines).map_values(parsed).rekey(lambda _, hit: hit.path)
    hits.to(per_path)
    hits.filter(lambda _, hit: hit.status >= 500).sink(Nowhere(), name="failed")
    app.sink(per_path, Nowhere(), name="hits", **sink)
    return app, lines, per_path


def test_records_that_are_given_reach_the_sinks() -> None:
    app, _, _ = an_app()
    with app.test() as t:
        t.source("nginx").give(b"/a 200", b"nonsense", b"/b 500")
        assert t.sink("failed").values == [Hit("/b", 500)]
        assert t.sink("hits").values == [Hit("/a", 200), Hit("/b", 500)]
        assert [record.key for record in t.sink("hits").records] == ["/a", "/b"]
        assert [letter.value for letter in t.dead_letters()] == [b"nonsense"]


def test_a_restart_carries_nothing_twice() -> None:
    app, _, _ = an_app()
    with app.test() as t:
        t.source("nginx").give(b"/b 500")
        t.restart()
        t.source("nginx").give(b"/c 501")
        t.rebalance(2)
        assert t.sink("failed").values == [Hit("/b", 500), Hit("/c", 501)]


def test_a_real_source_reads_on_as_time_advances() -> None:
    app, _, _ = an_app()
    with app.test() as t:
        t.source("nginx").run()
        assert t.sink("hits").values == [Hit("/a", 200)]
        t.advance("1s")
        assert t.sink("hits").values == [Hit("/a", 200), Hit("/b", 500)]
        assert t.source("nginx").offsets == {"{}": {"at": 2}}
        t.restart()
        assert len(t.sink("hits").values) == 3
        t.advance("1h")
        assert len(t.sink("hits").values) == 3


def test_a_source_of_the_tests_own_runs_in_its_stead() -> None:
    app, _, _ = an_app()
    with app.test() as t:
        t.source("nginx").run(Lines(lines=(b"/x 200",)))
        assert t.sink("hits").values == [Hit("/x", 200)]


def test_parts_of_a_plain_generator_feed_several_topics() -> None:
    app = App("parts")
    topics = {name: app.topic(f"topic-{name}", key=str, value=int) for name in "ab"}
    app.source(topics, Parts(), name="parts")
    with app.test() as t:
        t.source("parts").run()
        for name, topic in topics.items():
            assert t.output(topic).values == [0, 1, 2]
            assert [record.key for record in t.output(topic).records] == [name] * 3
        t.source("parts").give(7, key="k", topic="b")
        assert t.output(topics["b"]).values[-1] == 7


def test_transforms_change_records_and_leave_some_out() -> None:
    def masked(record: Record[Any, Any]) -> Record[Any, Any] | None:
        return None if record.value.status == 404 else record.replace(value=Hit("***", 1))

    app, _, _ = an_app(transforms=[masked])
    with app.test() as t:
        t.source("nginx").give(b"/a 200", b"/c 404")
        assert t.sink("hits").values == [Hit("***", 1)]


def test_a_write_that_fails_for_a_while_is_repeated() -> None:
    app, _, _ = an_app()
    with app.test() as t:
        t.sink("hits").fail(Retriable("busy", after="1h"), times=3)
        t.sink("hits").fail(ConnectionResetError("gone"), times=2)
        t.source("nginx").give(b"/a 200", b"/b 200")
        assert t.sink("hits").values == [Hit("/a", 200), Hit("/b", 200)]
        assert t.dead_letters() == []


def test_bad_records_become_dead_letters_and_the_others_are_carried() -> None:
    app, _, _ = an_app()
    with app.test() as t:
        t.sink("hits").fail(BadRecord("numeric field overflow"), times=2)
        t.source("nginx").give(b"/a 1", b"/b 2", b"/c 3", b"/d 4")
        assert t.sink("hits").values == [Hit("/c", 3), Hit("/d", 4)]
        letters = t.dead_letters()
        assert len(letters) == 2
        texts = [value for _, value in letters[0].headers]
        assert any(b"numeric field overflow" in (text or b"") for text in texts)


def test_a_bad_record_without_a_policy_fails_the_app() -> None:
    app, _, _ = an_app(on_error=on_error.FAIL)
    with app.test() as t:
        t.sink("hits").fail(ValueError("broken"))
        with pytest.raises(ProcessingError, match="broken"):
            t.source("nginx").give(b"/a 1")


def test_a_source_that_fails_fails_the_app() -> None:
    class Broken(Source[None, bytes], frozen=True, kw_only=True):
        def read(self, *_: object) -> Iterator[Read[None, bytes]]:
            raise ValueError("no such table")

    app, _, _ = an_app()
    with app.test() as t, pytest.raises(ProcessingError, match="no such table"):
        t.source("nginx").run(Broken())


def test_unknown_connectors_are_named() -> None:
    app, _, _ = an_app()
    with app.test() as t:
        with pytest.raises(UsageError, match=r"no source 'hits'; it has \['nginx'\]"):
            t.source("hits")
        with pytest.raises(UsageError, match=r"no sink 'nginx'; it has \['failed', 'hits'\]"):
            t.sink("nginx")


def test_a_newer_program_continues_behind_the_sinks_of_the_older_one() -> None:
    app, _, _ = an_app()
    with app.test() as before:
        before.source("nginx").give(b"/b 500")
        newer, _, _ = an_app()
        with newer.test(after=before) as t:
            t.source("nginx").give(b"/c 501")
            assert t.sink("failed").values == [Hit("/b", 500), Hit("/c", 501)]
