"""Headers that programs write: on streams, in processors, and through everything behind them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Processor, Record, Stream, Topic, on_error
from streamlog.errors import ProcessingError
from streamlog.record import Headers

values = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=12)


def app_of(**settings: Any) -> tuple[App, Topic[str, int], Topic[str, int]]:
    app = App("labels", **settings)
    return (
        app,
        app.topic("in", key=str, value=int, partitions=2),
        app.topic("out", key=str, value=int, partitions=2),
    )


def label(record: Record[str, int]) -> dict[str, bytes | str | None]:
    return {"value": str(record.value), "raw": b"\xff", "none": None}


def labelled(value: int) -> Headers:
    return (("value", str(value).encode()), ("raw", b"\xff"), ("none", None))


def test_headers_are_replaced_and_written() -> None:
    app, entry, out = app_of()
    app.stream(entry).with_headers(label).to(out)
    with app.test() as t:
        t.input(entry).send(7, key="a", headers={"old": b"x"})
        assert t.output(out).pop().headers == labelled(7)


def test_headers_of_the_record_may_be_kept() -> None:
    app, entry, out = app_of()
    more = app.stream(entry).with_headers(lambda record: (*record.headers, ("old", "y")))
    more.to(out)
    with app.test() as t:
        t.input(entry).send(7, key="a", headers={"old": b"x"})
        assert t.output(out).pop().headers == (("old", b"x"), ("old", b"y"))


def test_no_headers_are_none() -> None:
    app, entry, out = app_of()
    app.stream(entry).with_headers(lambda _: {}).to(out)
    with app.test() as t:
        t.input(entry).send(7, key="a", headers={"old": b"x"})
        assert t.output(out).pop().headers == ()


def thinned(stream: Stream[str, int]) -> Stream[str, int]:
    return stream.filter(lambda _, value: value % 2 == 0)


def repeated(stream: Stream[str, int]) -> Stream[str, int]:
    return stream.flat_map_values(lambda value: [value, value + 1])


def both(stream: Stream[str, int]) -> Stream[str, int]:
    return repeated(thinned(stream)).filter(lambda _, value: value % 3 != 0)


@given(values, st.sampled_from([thinned, repeated, both]), st.booleans())
def test_each_record_has_the_headers_of_its_own_value(
    sent: list[tuple[str, int]], change: Any, moves: Any
) -> None:
    """Also behind a repartition, whose provenance has to tell the same records apart."""
    app, entry, out = app_of()
    stream = change(app.stream(entry)).with_headers(label)
    if moves:
        stream = stream.rekey(lambda key, value: f"{key}{value % 2}").repartition(name="halves")
    stream.with_headers(lambda record: (*record.headers, ("seen", "1"))).to(out)
    with app.test() as t:
        for key, value in sent:
            t.input(entry).send(value, key=key)
        found = [(record.value, record.headers) for record in t.output(out).records]
    plain, plain_entry, plain_out = app_of()
    change(plain.stream(plain_entry)).to(plain_out)
    with plain.test() as t:
        for key, value in sent:
            t.input(plain_entry).send(value, key=key)
        wanted = Counter(record.value for record in t.output(plain_out).records)
    assert Counter(value for value, _ in found) == wanted
    assert all(headers == (*labelled(value), ("seen", b"1")) for value, headers in found)


@given(values)
def test_identities_stay_what_they_are_without_headers(sent: list[tuple[str, int]]) -> None:
    """UUIDs follow from the identity of a record, which headers are no part of."""

    class Named(Processor[str, int, str, str]):
        def process(self, record: Record[str, int]) -> None:
            self.ctx.forward(record.key, str(self.ctx.uuid()))

    found = []
    for has_headers in (False, True):
        app = App("labels")
        entry = app.topic("in", key=str, value=int, partitions=1)
        out = app.topic("out", key=str, value=str, partitions=1)
        stream = both(app.stream(entry))
        if has_headers:
            stream = stream.with_headers(label)
        stream.process(Named, name="named").to(out)
        with app.test() as t:
            for key, value in sent:
                t.input(entry).send(value, key=key)
            found.append(t.output(out).values)
    assert found[0] == found[1]
    assert len({*found[0]}) == len(found[0])


class Labels(Processor[str, int, str, int]):
    def process(self, record: Record[str, int]) -> None:
        self.ctx.forward(record.key, record.value)
        self.ctx.forward(record.key, record.value, headers={"is": "new"})
        self.ctx.forward(record.key, record.value, headers={})
        self.ctx.timers.set(record.key, record.timestamp, tag="x")

    def on_timer(self, key: str, at: Any, tag: str) -> None:
        self.ctx.forward(key, -1)
        self.ctx.forward(key, -2, headers=[("is", b"timer")])


def test_a_processor_forwards_with_headers() -> None:
    app, entry, out = app_of()
    app.stream(entry).process(Labels, name="labels").to(out)
    with app.test() as t:
        t.input(entry).send(7, key="a", headers={"old": b"x"})
        t.input(entry).send(8, key="a", headers={"old": b"y"}, at="2030-01-01T00:00:00Z")
        found = [(record.value, record.headers) for record in t.output(out).records]
    assert found[:3] == [(7, (("old", b"x"),)), (7, (("is", b"new"),)), (7, ())]
    assert (-1, ()) in found
    assert (-2, (("is", b"timer"),)) in found


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "headers are a dict of names to bytes, or pairs of both: got NoneType"),
        ("text", "pairs of both: got str"),
        ({"a": 1}, "header 'a' is bytes, a text or None: got int"),
        ({1: b"a"}, "the name of a header is a text: got int"),
        ({"streamlog.from": b""}, "header 'streamlog.from' is reserved"),
        ({"__value_schema_id": b""}, "is reserved: choose another name"),
        ([("a", b"")] * 1_001, "a record has 1001 headers: the limit is 1000"),
    ],
)
def test_other_headers_are_refused(given: Any, reason: str) -> None:
    app, entry, out = app_of()
    app.stream(entry).with_headers(lambda _: given).to(out)
    with app.test() as t, pytest.raises(ProcessingError) as caught:
        t.input(entry).send(7, key="a")
    assert reason in str(caught.value)


def test_a_record_whose_headers_fail_goes_the_way_of_its_policy() -> None:
    app, entry, out = app_of()
    stream = app.stream(entry)
    kept = stream.with_headers(lambda r: {"x": str(1 // r.value)}, on_error=on_error.skip())
    kept.to(out)
    with app.test() as t:
        for value in (0, 1):
            t.input(entry).send(value, key="a")
        assert [(record.value, record.headers) for record in t.output(out).records] == [
            (1, (("x", b"1"),))
        ]
