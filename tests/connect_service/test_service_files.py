"""Files of workers and connectors, and references to secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamlog.connect_service.service_files import (
    read_connector_file,
    read_worker_file,
    secrets_of,
    service_settings,
)
from streamlog.errors import ConfigError


def test_a_workers_file_has_kafka_connects_names(tmp_path: Path) -> None:
    path = tmp_path / "worker.properties"
    path.write_text(
        "group.id=g\nconfig.storage.topic=c\noffset.storage.partitions=7\n"
        "offset.flush.interval.ms=100\nplugin.path=/opt\n"
    )
    settings = service_settings(read_worker_file(path))
    assert (settings.group_id, settings.configs_topic, settings.offsets_topic) == (
        "g", "c", "connect-offsets",
    )  # fmt: skip
    assert (settings.offsets_partitions, settings.commit_ms) == (7, 100)
    assert settings.others["plugin.path"] == "/opt"
    assert read_worker_file(None) == {}


@pytest.mark.parametrize("text", ["x", "0", "99999999999", "-1"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"offset\.storage\.partitions"):
        service_settings({"offset.storage.partitions": text})


def test_a_connectors_file_keeps_its_references(tmp_path: Path) -> None:
    properties, posted, plain = (tmp_path / name for name in ("a.properties", "b.json", "c.json"))
    properties.write_text("name=a\npassword=${env:WORD}\n")
    posted.write_text(json.dumps({"name": "b", "config": {"password": "${env:WORD}"}}))
    plain.write_text(json.dumps({"name": "c", "password": "${env:WORD}"}))
    for path, name in ((properties, "a"), (posted, "b"), (plain, "c")):
        assert read_connector_file(path) == (name, {"name": name, "password": "${env:WORD}"})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.properties", "x=1", "name= is missing"),
        ("a.properties", "x", "line 1"),
        ("a.json", "{}", "is missing"),
        ("a.json", "[]", "is neither"),
        ("a.json", "\xff", "UTF-8"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, text: str, why: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=why) as refused:
        read_connector_file(path)
    assert name in str(refused.value)


def test_secrets_come_from_the_environment_and_from_allowed_directories(tmp_path: Path) -> None:
    allowed = tmp_path / "secrets"
    allowed.mkdir()
    (allowed / "db.properties").write_text("password=p1\n")
    (allowed / "token").write_text("t1\n")
    resolve = secrets_of([allowed], {"WORD": "w1"})
    text = f"${{env:WORD}}-${{file:{allowed}/db.properties:password}}-${{dir:{allowed}:token}}"
    assert resolve(text) == "w1-p1-t1"
    assert resolve("plain $text") == "plain $text"


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("${env:NONE}", "NONE is not set"),
        ("${file:/etc/hostname:a}", "--secrets-dir"),
        ("${dir:DIR/..:outside}", "--secrets-dir"),
        ("${dir:DIR:../outside}", "--secrets-dir"),
        ("${dir:DIR:link}", "--secrets-dir"),
        ("${file:DIR/db.properties:other}", "has no other"),
        ("${file:DIR/none:a}", "can't be read"),
        ("${file:DIR/db.properties}", "lacks its key"),
    ],
)
def test_a_reference_that_leads_nowhere_or_out_is_refused(
    tmp_path: Path, reference: str, why: str
) -> None:
    allowed = tmp_path / "secrets"
    allowed.mkdir()
    (allowed / "db.properties").write_text("password=p1\n")
    (tmp_path / "outside").write_text("x")
    (allowed / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match=why):
        secrets_of([allowed], {})(reference.replace("DIR", str(allowed)))


def test_misspelt_names_of_a_worker_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    names = ("grup.id", "group.id", "producer.acks", "config.storage.topics", "plugin.path")
    service_settings(dict.fromkeys(names, "x"))
    assert [each.args for each in caplog.records] == [
        ("grup.id", "group.id"), ("config.storage.topics", "config.storage.topic"),
    ]  # fmt: skip
