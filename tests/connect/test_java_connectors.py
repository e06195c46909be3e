"""Java connectors by name, and the settings that are refused, each with its name."""

from __future__ import annotations

import pytest

from streamlog.connect import SourceOffset, SourcePartition
from streamlog.connect.connector_settings import SettingsRefused, read_settings
from streamlog.connect.java_connectors import JavaConnector, last_name
from streamlog.connect.names import find_plugin

JDBC = {
    "connection.url": "jdbc:postgresql://h/d", "mode": "bulk", "table.whitelist": "a",
}  # fmt: skip
DEBEZIUM = {
    "database.hostname": "h", "database.user": "u", "database.dbname": "d", "topic.prefix": "p",
    "table.include.list": "public.orders",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "io.confluent.connect.jdbc.JdbcSourceConnector", "JdbcSource",
        "org.apache.kafka.connect.file.FileStreamSinkConnector", "FileStreamSink",
        "io.debezium.connector.postgresql.PostgresConnector", "Postgres",
    ],
)  # fmt: skip
def test_full_and_short_names_are_one_plugin(name: str) -> None:
    found = find_plugin(name)
    assert name.rpartition(".")[2] in (found.name, found.name.removesuffix("Connector"))


@pytest.mark.parametrize(
    ("name", "given", "changed"),
    [
        ("JdbcSource", JDBC, {"mode": "incrementing"}),
        ("JdbcSource", JDBC, {"table.whitelist": ""}),
        ("JdbcSource", JDBC, {"db.timezone": "Europe/Berlin"}),
        ("JdbcSource", JDBC, {"query.suffix": "FOR UPDATE"}),
        ("JdbcSource", JDBC, {"timestamp.initial": "-1"}),
        ("JdbcSink", {"connection.url": "jdbc:postgresql://h/d"}, {"insert.mode": "update"}),
        ("Postgres", DEBEZIUM, {"plugin.name": "decoderbufs"}),
        ("Postgres", DEBEZIUM, {"table.include.list": "public.*"}),
        ("Postgres", DEBEZIUM, {"slot.drop.on.stop": "true"}),
        ("Postgres", DEBEZIUM, {"tombstones.on.delete": "false"}),
        ("Postgres", DEBEZIUM, {"snapshot.mode": "always"}),
    ],
)
def test_a_setting_that_would_mean_something_else_is_refused_by_its_name(
    name: str, given: dict[str, str], changed: dict[str, str]
) -> None:
    model = find_plugin(name).settings
    read_settings(model, given)
    with pytest.raises(SettingsRefused) as refused:
        read_settings(model, given | changed)
    assert any(each in str(refused.value) for each in ("incrementing.column.name", *changed))


@pytest.mark.parametrize(
    ("part", "left", "found"),
    [
        ({"protocol": "1", "table": "d.public.a"}, {"incrementing": 7}, {"incrementing": 7}),
        ({"protocol": "1", "table": '"d"."a"'}, {"incrementing": 7}, {"incrementing": 7}),
        ({"protocol": "1", "table": "d.public.b"}, {"incrementing": 7}, None),
        (
            {"table": "a"},
            {"timestamp": 1_000, "timestamp_nanos": 123_456_000},
            {"timestamp": "1970-01-01T00:00:01.123456"},
        ),
        ({"table": "a"}, {"timestamp": 1_001}, {"timestamp": "1970-01-01T00:00:01.001000"}),
        ({"query": "query"}, {"incrementing": 7}, None),
    ],
)
def test_offsets_of_the_jdbc_source_are_those_of_the_table(
    part: SourcePartition, left: SourceOffset, found: SourceOffset | None
) -> None:
    java = read_settings(find_plugin("JdbcSource").settings, JDBC)
    assert isinstance(java, JavaConnector)
    assert java.left_offset({"table": "a"}, [(part, left)]) == found


@pytest.mark.parametrize(
    ("left", "lsn"),
    [
        ({"lsn": 24023128, "txId": 5}, "0/16E9058"),
        ({"lsn": 9, "lsn_proc": 8, "lsn_commit": 24023128}, "0/16E9058"),
        ({"lsn": 24023128, "snapshot": True, "snapshot_completed": True}, "0/16E9058"),
        ({"lsn": 24023128, "snapshot": True}, None),
        ({}, None),
    ],
)
def test_an_offset_of_debezium_is_the_end_of_a_transaction(
    left: SourceOffset, lsn: str | None
) -> None:
    java = read_settings(find_plugin("Postgres").settings, DEBEZIUM)
    assert isinstance(java, JavaConnector)
    assert java.left_offset({}, [({"server": "other"}, {"lsn": 1})]) is None
    found = java.left_offset({}, [({"server": "p"}, left)])
    assert (found and found["lsn"]) == lsn


def test_a_name_of_a_table_is_its_last_part() -> None:
    assert [last_name(each) for each in ("a", "public.a", '"d"."a"', "`a`")] == ["a"] * 4
