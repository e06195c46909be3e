"""Answers in their bound, arguments against JSON Schema, counters as Prometheus reads them."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from streamlog.cli.assistant.app_tools import counted
from streamlog.cli.assistant.bounded_answers import arguments_of, bounded, schema_of
from streamlog.cli.assistant.log_tools import AskedMessages, explained
from streamlog.errors import UsageError
from streamlog.generate.alerts import AlertLimits, alert_groups
from streamlog.protocol.error_codes import ErrorCode

TEXTS = st.text(max_size=40)


@given(
    st.lists(st.dictionaries(TEXTS, TEXTS, max_size=3), max_size=30),
    st.lists(TEXTS, max_size=30),
    st.integers(120, 3_000),
)
def test_an_answer_keeps_the_first_rows_that_fit_and_counts_the_others(
    rows: list[dict[str, str]], words: list[str], most: int
) -> None:
    text = bounded({"rows": rows, "words": words, "next": 1}, most)
    assert len(text) <= most
    assert text.isprintable()
    found = json.loads(text)
    assert rows[: len(found["rows"])] == found["rows"]
    assert words[: len(found["words"])] == found["words"]
    omitted = len(rows) + len(words) - len(found["rows"]) - len(found["words"])
    assert found.get("omitted", 0) == omitted
    assert ("next" in found) is (omitted == 0)


def test_an_answer_without_rows_to_leave_out_is_refused() -> None:
    with pytest.raises(UsageError, match="ask for less"):
        bounded({"text": "x" * 100, "rows": [1]}, 50)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 60),
    st.sampled_from(["newest", "offset", "auto", "hex", "orders", ""]),
)
FIELDS = st.sampled_from([*AskedMessages.__struct_fields__, "another"])


@given(st.dictionaries(FIELDS, VALUES, max_size=4), st.booleans())
def test_what_the_schema_allows_is_what_the_tool_takes(
    given_fields: dict[str, object], has_topic: bool
) -> None:
    fields = {**given_fields, **({"topic": "orders"} if has_topic else {})}
    try:
        jsonschema.validate(fields, schema_of(AskedMessages))
    except jsonschema.ValidationError:
        with pytest.raises(UsageError, match="wrong arguments"):
            arguments_of(AskedMessages, fields)
    else:
        arguments_of(AskedMessages, fields)


@given(st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 10**9)), max_size=5))
def test_counters_are_read_as_prometheus_reads_them(rows: list[tuple[str, str, int]]) -> None:
    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    name = "streamlog_records_dropped_total"
    text = f"# TYPE {name} counter\n" + "".join(
        f"{name}{{node={quoted(node)},reason={quoted(reason)}}} {count}\n"
        for node, reason, count in rows
    )
    expected = [
        {**sample.labels, "records": int(sample.value)}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.value
    ]
    assert counted(text) == {"dropped": expected, "late": []}


@pytest.mark.parametrize("code", ErrorCode)
def test_each_error_is_explained_by_its_name_and_by_its_number(code: ErrorCode) -> None:
    for name in (code.name, code.name.lower(), str(code.value)):
        assert explained(name)[0]["meaning"] == code.meaning


def test_alerts_and_exit_codes_are_explained() -> None:
    for alerts in alert_groups(AlertLimits()).values():
        for each in alerts:
            (found,) = explained(each.name)
            assert str(found["runbook"]).endswith(f"runbooks.md#{each.anchor}")
    assert {each["error"] for each in explained("exit 7")} == {"ProcessingError"}
    assert explained("exit 99") == []
