"""Connectors of an app: what a declaration holds, and what is refused where it is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, on_error
from streamlog.blueprints.blueprint import ConnectorEntry
from streamlog.connect import Read, Sink, SinkContext, SinkTask, Source
from streamlog.connect.declared_connectors import (
    Connectors,
    SinkConnector,
    SourceConnector,
    connector_entries,
    discover_ms,
)
from streamlog.errors import ConfigError, TopologyError
from streamlog.nodes.topic_spec import TopicSpec


@dataclass
class Hit:
    path: str
    status: int


class Lines(Source[None, bytes], frozen=True, kw_only=True):
    path: str

    def check(self) -> None:
        if not self.path:
            raise ConfigError("path is empty")

    def read(self, *_: object) -> Iterator[Read[None, bytes]]:
        yield Read([], {})


class Nowhere(Sink[str, object], frozen=True, kw_only=True):
    def open(self, context: SinkContext) -> SinkTask[str, object]:
        return SinkTask()


def an_app() -> tuple[App, Any, Any]:
    app = App("web", on_error=on_error.dlq())
    lines = app.topic("lines", key=str, value=bytes)
    return app, lines, app.topic("hits", key=str, value=Hit, on_error=on_error.skip())


def test_a_source_has_the_name_and_policy_of_its_topic() -> None:
    app, lines, _ = an_app()
    app.source(lines, Lines(path="a"), discover_every="5s", tasks=3)
    (found,) = app.connectors
    assert isinstance(found, SourceConnector)
    assert (found.name, found.tasks, found.discover_every_ms) == ("lines", 3, 5_000)
    assert found.policy == on_error.dlq("web-dlq")
    assert found.topic_of("anything") is lines.spec


def test_a_source_of_several_topics_finds_each_by_its_own_name() -> None:
    app, lines, hits = an_app()
    app.source({"a": lines, "b": hits}, Lines(path="a"), name="both")
    (found,) = app.connectors
    assert isinstance(found, SourceConnector)
    assert found.topic_of("b") is hits.spec
    with pytest.raises(ConfigError, match="a record for 'c', and the app has topics for 'a', 'b'"):
        found.topic_of("c")


def test_a_sink_has_the_name_and_policy_of_its_topic() -> None:
    app, _, hits = an_app()
    app.sink(hits, Nowhere())
    (found,) = app.connectors
    assert isinstance(found, SinkConnector)
    assert (found.name, found.policy, found.is_own_topic) == ("hits", on_error.skip(), False)


def test_a_stream_goes_outside_by_a_topic_of_its_own() -> None:
    app, lines, _ = an_app()
    app.stream(lines).map_values(len).sink(Nowhere(), name="out", partitions=4)
    (found,) = app.connectors
    assert isinstance(found, SinkConnector)
    assert [spec.name for spec in found.topics] == ["web-out-sink"]
    assert found.is_own_topic
    assert app.program().topics["web-out-sink"].partitions == 4
    assert "web-out-sink" in app.topology().topics


def test_dead_letters_of_connectors_have_their_topic() -> None:
    app, lines, _ = an_app()
    app.source(lines, Lines(path="a"), on_error=on_error.dlq("letters"))
    assert "letters" in app.program().topics


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda app, at: app.source(at, Lines(path="")), "'lines' \\(Lines\\): path is empty"),
        (lambda app, at: app.source(at, Nowhere()), "is no source"),
        (lambda app, at: app.sink(at, Lines(path="a")), "is no sink"),
        (lambda app, at: app.stream(at).sink(Lines(path="a"), name="x"), "is no sink"),
        (lambda app, at: app.source({"a": at}, Lines(path="a")), "needs a name"),
        (lambda app, at: app.source({}, Lines(path="a"), name="x"), "needs a name"),
        (lambda app, at: app.sink([], Nowhere()), "needs one topic"),
        (lambda app, at: app.sink(at, Nowhere(), tasks=0), "tasks must be 1 to 1000, not 0"),
        (lambda app, at: app.sink(at, Nowhere(), name="a b"), "can't be the name of a connector"),
        (lambda app, at: app.sink(at, Nowhere(), transforms=[1]), "1 is no transform"),
        (lambda app, at: app.sink(at, Nowhere(), on_error="skip"), "which is no policy"),
        (lambda app, at: app.source(at, Lines(path="a"), discover_every="0s"), "longer than 0 ms"),
        (lambda app, at: app.stream(at).sink(Nowhere(), name="x", partitions=0), "1 or more"),
        (lambda app, at: app.sink("lines", Nowhere()), "is not a topic"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_where_it_is_declared(declare: Any, message: str) -> None:
    app, lines, _ = an_app()
    with pytest.raises((TopologyError, ConfigError), match=message):
        declare(app, lines)


def test_a_name_is_taken_once_by_sources_and_sinks_together() -> None:
    app, lines, _ = an_app()
    app.source(lines, Lines(path="a"))
    with pytest.raises(TopologyError, match="connector 'lines' is already declared"):
        app.sink(lines, Nowhere())


def test_a_topic_of_another_app_is_refused() -> None:
    app, _, _ = an_app()
    _, other, _ = an_app()
    with pytest.raises(TopologyError, match="does not belong to app"):
        app.sink(other, Nowhere())


def test_a_declared_source_has_no_offsets_of_java_and_keeps_bytes_unless_it_transforms() -> None:
    app, lines, _ = an_app()
    app.source(lines, Lines(path="a"))
    app.source(lines, Lines(path="b"), name="changed", transforms=[lambda record: record])
    plain, changed = app.connectors
    assert isinstance(plain, SourceConnector)
    assert isinstance(changed, SourceConnector)
    assert plain.left_offset({}, [({}, {"at": 1})]) is None
    assert (plain.needs_schemas, plain.keeps_raw, changed.keeps_raw) == (False, True, False)
    assert plain.has_context_headers is False
    assert discover_ms("30s") == plain.discover_every_ms == 30_000


def test_a_sink_knows_its_topics_or_those_that_are_like_one() -> None:
    spec = an_app()[1].spec
    named = SinkConnector(
        name="a", sink=Nowhere(), topics=[spec], policy=on_error.skip(), tasks=1_000
    )
    assert named.topic_of("lines") is spec
    with pytest.raises(ConfigError, match="sink 'a' does not carry the topic 'line'"):
        named.topic_of("line")
    like = SinkConnector(
        name="b", sink=Nowhere(), topics=[spec], like=spec, policy=on_error.skip(),
        is_own_topic=True,
    )  # fmt: skip
    assert like.topic_of("lines") is spec
    other = like.topic_of("other")
    assert (other.name, other.key, other.value) == ("other", spec.key, spec.value)
    assert (named.is_own_topic, named.has_context_headers) == (False, False)
    connectors = Connectors()
    connectors.add(named)
    connectors.add(like)
    assert connectors.own_topics == {"lines": spec}
    assert (connectors.sinks, connectors.sources) == ((named, like), ())


def test_a_source_under_no_name_takes_every_record() -> None:
    lines, other = an_app()[1].spec, TopicSpec("other", an_app()[1].spec.key, None)  # type: ignore[arg-type]
    source = SourceConnector(
        name="a", source=Lines(path="a"), topics={"": lines, "x": other}, policy=on_error.skip()
    )
    assert (source.topic_of("x"), source.topic_of("y")) == (lines, lines)


def test_a_blueprint_has_the_class_and_the_topics_of_each_connector() -> None:
    app, lines, hits = an_app()
    app.source({"b": lines, "a": hits, "c": lines}, Lines(path="a"), name="in")
    app.sink([lines, hits], Nowhere(), name="out")
    assert connector_entries(app.connectors) == {
        "in": ConnectorEntry("source", "Lines", ["hits", "lines"]),
        "out": ConnectorEntry("sink", "Nowhere", ["hits", "lines"]),
    }


@pytest.mark.parametrize(("every", "ms"), [("1ms", 1), ("2h", 7_200_000)])
def test_a_source_is_asked_for_its_parts_at_an_interval(every: str, ms: int) -> None:
    assert discover_ms(every) == ms
    with pytest.raises(ConfigError, match="longer than 0 ms"):
        discover_ms("0ms")


def test_as_many_tasks_as_the_limit_are_accepted_and_one_more_is_not() -> None:
    app, lines, _ = an_app()
    app.sink(lines, Nowhere(), tasks=1_000)
    with pytest.raises(TopologyError, match="tasks must be 1 to 1000, not 1001"):
        app.sink(lines, Nowhere(), name="more", tasks=1_001)
