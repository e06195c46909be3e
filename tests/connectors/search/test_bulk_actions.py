from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import Batch, ConnectError, TopicPartition
from streamlog.connectors.search import Search
from streamlog.connectors.search.bulk_actions import (
    BulkAction,
    IndexName,
    bodies,
    plan_actions,
    settle,
)
from streamlog.errors import ConfigError
from streamlog.record import Record

PLACE = TopicPartition("Orders", 2)
NOW = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)


def batch(*pairs: tuple[Any, Any], first: int = 7) -> Batch[Any, Any]:
    records = [
        Record(key, value, NOW, (), *PLACE, first + at) for at, (key, value) in enumerate(pairs)
    ]
    raw = [
        (
            None,
            value if isinstance(value, bytes | None) else json.dumps(value, default=str).encode(),
        )
        for _, value in pairs
    ]
    return Batch(PLACE, records, next_offset=first + len(pairs), raw=raw)


def lines(sink: Search, *pairs: tuple[Any, Any]) -> list[list[Any]]:
    plan = plan_actions(sink.rules, batch(*pairs))
    assert not plan.bad
    return [[json.loads(line) for line in each.lines.splitlines()] for each in plan.actions]


def made(**chosen: Any) -> Search:
    return Search(urls=("http://x",), **chosen)


@dataclass
class Order:
    total: Decimal
    lines: list[str]


def test_a_record_is_a_document_of_its_key_with_its_offset_as_the_version() -> None:
    head = {"_index": "orders", "version_type": "external_gte"}
    assert lines(made(), ("k", {"n": 1}), (4, Order(Decimal("1.50"), ["a"])), ("k", None)) == [
        [{"index": {**head, "_id": "k", "version": 7}}, {"n": 1}],
        [{"index": {**head, "_id": "4", "version": 8}}, {"total": 1.5, "lines": ["a"]}],
        [{"delete": {**head, "_id": "k", "version": 9}}],
    ]


def test_a_record_without_a_key_is_a_document_of_its_offset() -> None:
    ((head, document),) = lines(made(index="logs-{timestamp:%Y.%m.%d}"), (None, b"a line"))
    assert head["index"]["_id"] == "Orders+2+7"
    assert head["index"]["_index"] == "logs-2026.01.31"
    assert document == {"value": "a line"}


def test_a_data_stream_gets_new_documents_with_a_time() -> None:
    sink = made(data_stream=True, index="logs-app-default")
    assert lines(sink, ("k", {"n": 1}), ("k", None), ("k", {"@timestamp": 5})) == [
        [
            {"create": {"_index": "logs-app-default", "_id": "Orders+2+7"}},
            {"n": 1, "@timestamp": "2026-01-31T23:30:00Z"},
        ],
        [{"create": {"_index": "logs-app-default", "_id": "Orders+2+9"}}, {"@timestamp": 5}],
    ]


def test_json_is_sent_as_it_is_written_on_one_line() -> None:
    sink = made(document="json", timestamp_field="at")
    found = plan_actions(
        sink.rules, batch(("a", b'{"n": 1.50,\r\n "at": 3}'), ("b", b'{"n":"x\\ny"}'))
    )
    sent = [each.lines.split(b"\n")[1] for each in found.actions]
    assert sent[0] == b'{"n":1.50,"at":3}'
    assert json.loads(sent[1]) == {"n": "x\ny", "at": "2026-01-31T23:30:00Z"}
    bad = plan_actions(sink.rules, batch(("a", b"[1]"), ("b", b"{"), ("c", b"")))
    assert [*bad.bad] == [0, 1, 2]


def test_tombstones() -> None:
    assert plan_actions(made(tombstones="ignore").rules, batch(("k", None))).ignored == 1
    assert plan_actions(made().rules, batch((None, None))).ignored == 1
    assert plan_actions(made(tombstones="fail").rules, batch(("k", None))).bad == {
        0: "the record has no value, and tombstones is 'fail'"
    }


@pytest.mark.parametrize(
    ("key", "identifier"),
    [
        ("é", "é"),
        (b"k", "k"),
        (True, "true"),
        (-3, "-3"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        ("é" * 256, "é" * 256),
    ],
)
def test_keys_are_ids(key: object, identifier: str) -> None:
    ((head, _),) = lines(made(), (key, {}))
    assert head["index"]["_id"] == identifier


@pytest.mark.parametrize("key", ["", "é" * 257, b"\xff", "\ud800", object(), {1j: 2}])
def test_keys_that_are_no_ids_are_bad_records(key: object) -> None:
    plan = plan_actions(made().rules, batch(("good", {}), (key, {})))
    assert [*plan.bad] == [1]
    assert len(plan.actions) == 1


@pytest.mark.parametrize("value", [{"a": object()}, {"a": 1j}, {"s": "\ud800"}])
def test_values_that_are_no_json_are_bad_records(value: object) -> None:
    assert [*plan_actions(made().rules, batch(("k", value))).bad] == [0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(
    st.lists(st.tuples(st.text(), st.dictionaries(st.text(), json_values, max_size=3)), max_size=4)
)
def test_whatever_a_value_is_an_action_has_two_lines(pairs: list[tuple[str, Any]]) -> None:
    plan = plan_actions(made().rules, batch(*pairs))
    assert len(plan.actions) + len(plan.bad) == len(pairs)
    for action in plan.actions:
        head, document, end = action.lines.split(b"\n")
        assert not end
        assert json.loads(head)["index"]["_id"] == pairs[action.at][0]
        assert json.loads(document) == _without_nan(pairs[action.at][1])


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return [_without_nan(part) for part in value] if isinstance(value, list) else value


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(1, 50))
def test_bodies_have_all_actions_in_order_and_are_bounded(sizes: list[int], limit: int) -> None:
    actions = [BulkAction(at, at, ("i", str(at)), b"x" * size) for at, size in enumerate(sizes)]
    found = [*bodies(actions, limit)]
    assert [action for body in found for action in body] == actions
    for body in found:
        assert len(body) == 1 or sum(len(action.lines) for action in body) <= limit


# Answers of OpenSearch 2.17.1, as it gave them to `filter_path`.
CONFLICT = (
    '{"status":409,"error":{"type":"version_conflict_engine_exception","reason":'
    '"[k]: version conflict, current version [9] is higher than the one provided [7]"}}'
)
UNPARSED = (
    '{"status":400,"error":{"type":"mapper_parsing_exception","reason":"failed to parse field [n] '
    "of type [long] in document with id 'k2'. Preview of field's value: 'text'\",\"caused_by\":"
    '{"reason":"For input string: \\"text\\""}}}'
)
FULL = (
    '{"status":429,"error":{"type":"cluster_block_exception","reason":"index [a] blocked by: '
    "[TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has "
    'read-only-allow-delete block];"}}'
)
BLOCKED = (
    '{"status":403,"error":{"type":"cluster_block_exception","reason":"index [a] blocked by: '
    '[FORBIDDEN/8/index write (api)];"}}'
)
NO_INDEX = (
    '{"status":404,"error":{"type":"index_not_found_exception","reason":"no such index [nope]"}}'
)
CLOSED = '{"status":400,"error":{"type":"index_closed_exception","reason":"closed"}}'
STREAM = (
    '{"status":400,"error":{"type":"illegal_argument_exception","reason":"only write ops with an '
    'op_type of create are allowed in data streams"}}'
)


def answer(*items: str) -> bytes:
    inner = ",".join(f'{{"index":{item}}}' for item in items)
    return f'{{"errors":true,"items":[{inner}]}}'.encode()


def actions(*ids: str) -> list[BulkAction]:
    return [BulkAction(at, 100 + at, ("a", each), b"") for at, each in enumerate(ids)]


def test_created_replaced_deleted_missing_and_newer_documents_are_done() -> None:
    found = settle(
        actions("a", "b", "c", "k"),
        answer('{"status":201}', '{"status":200}', '{"status":404}', CONFLICT),
    )
    assert found.done == [100, 101, 102, 103]
    assert (found.conflicts, found.newest, found.bad, found.again) == (1, 9, {}, "")


def test_a_document_that_does_not_fit_is_bad() -> None:
    found = settle(actions("a", "b"), answer('{"status":201}', UNPARSED))
    assert found.done == [100]
    assert "field [n] of type [long]" in found.bad[1]
    assert "For input string" in found.bad[1]


@pytest.mark.parametrize("item", [FULL, BLOCKED, '{"status":503}', '{"status":500}'])
def test_all_actions_of_a_document_that_waits_are_sent_again(item: str) -> None:
    found = settle(actions("k", "b", "k"), answer(item, '{"status":201}', '{"status":200}'))
    assert found.done == [101]
    assert found.again.startswith(item[10:13])


@pytest.mark.parametrize("item", [NO_INDEX, CLOSED, STREAM, '{"status":401}'])
def test_what_blames_the_index_is_no_fault_of_a_record(item: str) -> None:
    with pytest.raises(ConfigError):
        settle(actions("k"), answer(item))


@pytest.mark.parametrize("given", [b"", b"<html>", b"{}", b'{"items":[]}', b'{"items":[{}]}'])
def test_what_is_no_answer_is_refused_or_sent_again(given: bytes) -> None:
    with suppress(ConnectError):
        assert settle(actions("k"), given).again


@pytest.mark.parametrize(
    ("template", "topic", "name"),
    [
        ("{topic}", "A_b-c.d", "a_b-c.d"),
        ("x-{topic}", "T", "x-t"),
        ("{topic}-{timestamp:%Y.%m}", "T", "t-2026.01"),
        ("{topic}-x", "T", "t-x"),
    ],
)
def test_indexes(template: str, topic: str, name: str) -> None:
    record = cast("Record[object, object]", Record(None, None, NOW, (), topic, 0, 0))
    assert IndexName(template).of(record) == name


@pytest.mark.parametrize(
    "template",
    ["", "{", "{key}", "{timestamp}", "{topic!r}", "{topic:x}", "a/b", "a b", "a,b", "{}", "a*"],
)
def test_templates_that_are_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="index="):
        IndexName(template)


@pytest.mark.parametrize("topic", ["_x", "-x", "..", "x" * 256])
def test_topics_that_no_index_can_be_named_after(topic: str) -> None:
    record = cast("Record[object, object]", Record(None, None, NOW, (), topic, 0, 0))
    with pytest.raises(ConfigError, match="set index"):
        IndexName("{topic}").of(record)
