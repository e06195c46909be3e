"""The REST API on a real broker: refusals with Confluent's codes, and what hostile clients send."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tests.registry.running import JSON_TYPE, RunningRegistry

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]})
V1 = {"schema": SCHEMA}


def nested(depth: int) -> str:
    text = '"int"'
    for _ in range(depth):
        text = f'{{"type":"array","items":{text}}}'
    return text


@pytest.mark.parametrize(
    ("method", "path", "body", "refusal"),
    [
        ("GET", "/subjects/none/versions", None, (404, 40401)),
        ("GET", "/subjects/none/versions/1", None, (404, 40401)),
        ("GET", "/subjects/refusals/versions/9", None, (404, 40402)),
        ("GET", "/subjects/refusals/versions/0", None, (422, 42202)),
        ("GET", "/subjects/refusals/versions/x", None, (422, 42202)),
        ("GET", f"/subjects/refusals/versions/{2**31}", None, (422, 42202)),
        ("GET", f"/subjects/refusals/versions/{'9' * 5000}", None, (422, 42202)),
        ("GET", "/subjects/refusals/versions/latest/nothing", None, (404, 404)),
        ("GET", "/schemas/ids/999999", None, (404, 40403)),
        ("GET", "/schemas/ids/x", None, (404, 404)),
        ("GET", "/schemas/guids/x", None, (404, 40403)),
        ("GET", "/config/none", None, (404, 40408)),
        ("GET", "/mode/none", None, (404, 40409)),
        ("GET", "/subjects?offset=x", None, (400, 400)),
        ("GET", "/%ff", None, (400, 400)),
        ("GET", "/nothing", None, (404, 404)),
        ("PATCH", "/subjects", None, (405, 405)),
        ("POST", "/subjects/none", V1, (404, 40401)),
        ("POST", "/subjects/refusals", {"schema": '"int"'}, (404, 40403)),
        ("POST", "/subjects/x/versions", {}, (422, 42201)),
        ("POST", "/subjects/x/versions", {"schema": " "}, (422, 42201)),
        ("POST", "/subjects/x/versions", {"schema": '{"type":'}, (422, 42201)),
        ("POST", "/subjects/x/versions", {"schema": '"nothing"'}, (422, 42201)),
        ("POST", "/subjects/x/versions", {**V1, "schemaType": "XML"}, (422, 42201)),
        ("POST", "/subjects/x/versions", {"schema": 1}, (422, 422)),
        ("POST", "/subjects/x/versions", [1], (422, 422)),
        ("POST", "/subjects/x/versions", {"schema": nested(2_000)}, (422, 42201)),
        ("POST", "/subjects/x/versions", {"schema": "[" * 100_000}, (422, 42201)),
        (
            "POST",
            "/subjects/x/versions",
            {**V1, "metadata": {"a": None}, "version": 5},
            (422, 42201),
        ),
        ("POST", "/subjects/x/versions", {**V1, "id": 5}, (422, 42205)),
        ("POST", "/subjects/%00/versions", V1, (422, 42208)),
        ("POST", f"/subjects/{'x' * 1_001}/versions", V1, (422, 42208)),
        (
            "POST",
            "/subjects/x/versions",
            {**V1, "references": [{"name": "A", "subject": "none", "version": 1}]},
            (422, 42201),
        ),
        ("POST", "/compatibility/subjects/refusals/versions/7", V1, (404, 40402)),
        ("POST", "/compatibility/subjects/refusals/versions/x", V1, (422, 42202)),
        ("PUT", "/config", {"compatibility": "SOMEHOW"}, (422, 42203)),
        ("PUT", "/config/none", {"normalize": "yes"}, (422, 422)),
        ("PUT", "/mode/none", {"mode": "NEVER"}, (422, 42204)),
        ("PUT", "/mode/refusals", {"mode": "IMPORT"}, (422, 42205)),
        ("DELETE", "/subjects/none", None, (404, 40401)),
        ("DELETE", "/subjects/refusals?permanent=true", None, (404, 40405)),
        ("DELETE", "/subjects/refusals/versions/9", None, (404, 40402)),
        ("DELETE", "/subjects/refusals/versions/1?permanent=true", None, (404, 40407)),
        ("DELETE", "/subjects/deleted", None, (404, 40404)),
        ("DELETE", "/subjects/deleted/versions/1", None, (404, 40406)),
        ("DELETE", "/config/none", None, (404, 40401)),
        ("DELETE", "/mode/none", None, (404, 40401)),
    ],
)
def test_refusals_have_confluents_codes_and_a_sentence(
    registry: RunningRegistry, method: str, path: str, body: Any, refusal: tuple[int, int]
) -> None:
    if registry.ask("GET", "/subjects/deleted/versions?deleted=true").status == 404:
        registry.register("refusals", SCHEMA)
        registry.register("deleted", SCHEMA)
        assert registry.ask("DELETE", "/subjects/deleted").content == [1]
    found = registry.ask(method, path, body)
    assert (found.status, found.code) == refusal, found
    assert len(found.content["message"]) > 8
    assert "Traceback" not in found.content["message"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, 400),
        (b"{", 400, 400),
        (b"\xff\xfe", 400, 400),
        (b'{"schema": "' + b"x" * 1_200_000 + b'"}', 422, 42201),
        (b'{"schema": "' + b"x" * 10_000_000 + b'"}', 422, 42201),
        (b'{"metadata": ' + b"[" * 100_000, 422, 42201),
        (b'{"schema": "\\"int\\"", "metadata": ' + b'{"a":' * 200 + b"1" + b"}" * 201, 422, 42201),
    ],
)
def test_bodies_are_bounded_and_leave_nothing_behind(
    registry: RunningRegistry, body: bytes, status: int, code: int
) -> None:
    before = registry.get("/schemas")
    found = registry.ask("POST", "/subjects/hostile/versions", body=body)
    assert (found.status, found.code) == (status, code), found
    assert registry.get("/schemas") == before


def test_media_types_are_negotiated(registry: RunningRegistry) -> None:
    def asked(**headers: str) -> tuple[int, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        found = registry.ask("GET", "/subjects", headers=named)
        return found.status, found.headers.get("content-type", "")

    assert asked() == (200, JSON_TYPE)
    assert asked(accept="application/json") == (200, "application/json")
    assert asked(accept="text/html, */*;q=0.8") == (200, JSON_TYPE)
    assert asked(accept="text/html")[0] == 406
    refused = registry.ask(
        "POST", "/subjects/x/versions", V1, headers={"content-type": "text/plain"}
    )
    assert (refused.status, refused.code) == (415, 415)
    head = registry.ask("HEAD", "/subjects")
    assert (head.status, head.content) == (200, "")
    other_host = registry.ask("GET", "/subjects", headers={"host": "evil.example"})
    assert other_host.status == 400


def test_names_with_slashes_and_contexts_are_one_subject_however_written(
    registry: RunningRegistry,
) -> None:
    registry.register("a/b c-value", SCHEMA)
    assert registry.get("/subjects/a%2Fb%20c-value/versions") == [1]
    assert registry.ask("GET", "/subjects/a/b/versions").status == 404
    first = registry.register(":.audit:one", SCHEMA)
    assert registry.get("/contexts/:.audit:/subjects/one/versions/1")["id"] == first
    assert registry.get("/contexts/.audit/subjects") == [":.audit:one"]
    assert registry.get("/subjects/:.:a%2Fb%20c-value/versions") == [1]
    assert ":.audit:one" in registry.get("/subjects")
    assert registry.get("/subjects?subjectPrefix=one") == []
    assert registry.get("/subjects?subjectPrefix=:*:one") == [":.audit:one"]


def test_schemas_are_read_as_text_listed_and_paged(registry: RunningRegistry) -> None:
    schema_id = registry.register("text", SCHEMA)
    assert registry.get(f"/schemas/ids/{schema_id}/schema") == json.loads(SCHEMA)
    assert registry.get("/subjects/text/versions/1/schema") == json.loads(SCHEMA)
    found = registry.get("/schemas?subjectPrefix=text&latestOnly=true")
    assert [(each["subject"], each["version"], each["id"]) for each in found] == [
        ("text", 1, schema_id)
    ]
    assert registry.get(f"/schemas/ids/{schema_id}?fetchMaxId=true")["maxId"] >= schema_id
    everything = registry.get("/subjects")
    assert registry.get("/subjects?offset=1&limit=1") == everything[1:2]
    assert registry.get("/v1/metadata/version")["version"]
    assert registry.get("/v1/metadata/id")["id"]
    assert registry.get("/") == {}


def test_an_alias_stands_for_another_subject(registry: RunningRegistry) -> None:
    registry.register("target", SCHEMA)
    assert registry.ask("PUT", "/config/nickname", {"alias": "target"}).status == 200
    assert registry.get("/subjects/nickname/versions/latest")["subject"] == "target"
    registry.register("nickname", json.dumps({"type": "record", "name": "R", "fields": []}))
    assert registry.get("/subjects/target/versions") == [1, 2]
    assert registry.get("/config/nickname")["alias"] == "target"


def test_imports_keep_ids_and_versions_and_replace_nothing(registry: RunningRegistry) -> None:
    assert registry.ask("PUT", "/mode/:.mirror:", {"mode": "IMPORT"}).status == 200
    path = "/subjects/:.mirror:orders/versions"
    assert registry.ask("POST", path, {**V1, "id": 70, "version": 3}).content == {"id": 70}
    assert registry.ask("POST", path, {**V1, "id": 70, "version": 3}).content == {"id": 70}
    other = {"schema": '"int"', "id": 70, "version": 4}
    assert registry.ask("POST", path, other).code == 42205
    assert registry.ask("POST", path, {"schema": '"int"', "id": 71, "version": 3}).code == 42205
    assert registry.ask("POST", path, V1).code == 42205
    assert registry.get("/subjects/:.mirror:orders/versions") == [3]
    registry.ask("PUT", "/mode/:.mirror:", {"mode": "READWRITE"})
    assert registry.register(":.mirror:new", '"string"') == 71


def test_normalization_is_asked_for_or_configured(registry: RunningRegistry) -> None:
    spaced = '{"type": "record", "name": "N", "doc": "", "fields": []}'
    first = registry.register("normal", spaced)
    registry.ask("PUT", "/config/normal", {"normalize": True})
    assert registry.get("/config/normal")["normalize"] is True
    assert registry.get("/config/normal?defaultToGlobal=true")["compatibilityLevel"] == "BACKWARD"
    assert registry.register("normal", '{"name":"N","type":"record","doc":"","fields":[]}') in (
        first,
        first + 1,
    )
    text = registry.ask("POST", "/subjects/normal?normalize=false", {"schema": spaced})
    assert text.content["id"] == first


def test_a_protobuf_schema_is_answered_as_a_descriptor_with_its_references(
    registry: RunningRegistry,
) -> None:
    base = {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; message Base { int32 a = 1; }'}
    registry.ask("POST", "/subjects/base-proto/versions", base)
    text = 'syntax = "proto3"; import "base.proto"; message Top { Base base = 1; }'
    references = [{"name": "base.proto", "subject": "base-proto", "version": 1}]
    top = {"schemaType": "PROTOBUF", "schema": text, "references": references}
    number = registry.ask("POST", "/subjects/top-proto/versions", top).content["id"]
    for path in (f"/schemas/ids/{number}", "/subjects/top-proto/versions/latest"):
        found = registry.get(f"{path}?format=serialized")
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(found["schema"]))
        assert [each.name for each in file.message_type] == ["Top"]
        assert list(file.dependency) == ["base.proto"]
        assert "message Top" in registry.get(path)["schema"]


def test_an_avro_schema_is_answered_without_references(registry: RunningRegistry) -> None:
    registry.ask("POST", "/subjects/base-avro/versions", V1)
    references = [{"name": "R", "subject": "base-avro", "version": 1}]
    top = {"schema": '{"type":"array","items":"R"}', "references": references}
    assert registry.ask("POST", "/subjects/top-avro/versions", top).status == 200
    path = "/subjects/top-avro/versions/1"
    assert '"items":"R"' in registry.get(path)["schema"]
    assert '"name":"x"' in registry.get(f"{path}?format=resolved")["schema"]
