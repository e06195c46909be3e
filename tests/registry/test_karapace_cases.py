"""Facts out of karapace's own REST tests, rewritten as sequences of requests and answers.

Where karapace differs from Confluent's registry, Confluent's answer holds here: after a permanent
deletion an equal schema gets a new id, and messages have a space after "deleted.".
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.registry.running import RunningRegistry


def enum(*symbols: str) -> str:
    kind = {"type": "enum", "name": "enumtest", "symbols": list(symbols)}
    fields = [{"name": "faa", "type": kind}]
    return json.dumps({"type": "record", "name": "myenumtest", "fields": fields})


def record(*fields: str) -> str:
    declared = [{"name": field, "type": "string"} for field in fields]
    return json.dumps({"type": "record", "name": "R", "fields": declared})


Step = tuple[str, str, Any, int, Any]
"""Method, path after the subject's, body, status, and content; a number for an error's code."""
ANY = object()
SEQUENCES: dict[str, list[Step]] = {
    "a version is deleted softly, then for good, and each only once": [
        ("POST", "/subjects/{}/versions", {"schema": enum("a", "b")}, 200, ANY),
        ("POST", "/subjects/{}/versions", {"schema": enum("a", "b", "c")}, 200, ANY),
        ("DELETE", "/subjects/{}/versions/1?permanent=true", None, 404, 40407),
        ("DELETE", "/subjects/{}/versions/1", None, 200, 1),
        ("DELETE", "/subjects/{}/versions/1", None, 404, 40406),
        ("GET", "/subjects/{}/versions/1", None, 404, 40402),
        ("DELETE", "/subjects/{}/versions/1?permanent=true", None, 200, 1),
        ("DELETE", "/subjects/{}/versions/1?permanent=true", None, 404, 40402),
    ],
    "a subject is deleted softly, then for good": [
        ("POST", "/subjects/{}/versions", {"schema": enum("a", "b")}, 200, ANY),
        ("POST", "/subjects/{}/versions", {"schema": enum("a", "b", "c")}, 200, ANY),
        ("DELETE", "/subjects/{}?permanent=true", None, 404, 40405),
        ("DELETE", "/subjects/{}", None, 200, [1, 2]),
        ("GET", "/subjects/{}/versions", None, 404, 40401),
        ("DELETE", "/subjects/{}?permanent=true", None, 200, [1, 2]),
        ("GET", "/subjects/{}/versions", None, 404, 40401),
    ],
    "versions go on after a soft deletion": [
        ("POST", "/subjects/{}/versions", {"schema": record("first")}, 200, ANY),
        ("PUT", "/config/{}", {"compatibility": "FORWARD"}, 200, {"compatibility": "FORWARD"}),
        ("POST", "/subjects/{}/versions", {"schema": record("first", "last")}, 200, ANY),
        ("GET", "/subjects/{}/versions", None, 200, [1, 2]),
        ("DELETE", "/subjects/{}", None, 200, [1, 2]),
        # With the subject goes its level.
        ("GET", "/config/{}", None, 404, 40408),
        ("POST", "/subjects/{}/versions", {"schema": record("first")}, 200, ANY),
        ("GET", "/subjects/{}/versions", None, 200, [3]),
    ],
    "the last version takes its subject along": [
        ("POST", "/subjects/{}/versions", {"schema": '{"type":"string","foo":"1"}'}, 200, ANY),
        ("DELETE", "/subjects/{}/versions/1", None, 200, 1),
        ("GET", "/subjects/{}/versions", None, 404, 40401),
        ("GET", "/subjects/{}/versions/latest", None, 404, 40401),
        ("POST", "/subjects/{}/versions", {"schema": '{"type":"string","foo":"2"}'}, 200, ANY),
        ("GET", "/subjects/{}/versions", None, 200, [2]),
    ],
    "the schema of a version is its text": [
        ("POST", "/subjects/{}/versions", {"schema": record("x")}, 200, ANY),
        ("GET", "/subjects/{}/versions/1/schema", None, 200, json.loads(record("x"))),
        ("GET", "/subjects/{}/versions/latest/schema", None, 200, json.loads(record("x"))),
        ("GET", "/subjects/{}/versions/2/schema", None, 404, 40402),
        ("GET", "/subjects/{}-other/versions/1/schema", None, 404, 40401),
    ],
    "repeated fields, reserved names and cut texts are no schemas": [
        ("POST", "/subjects/{}/versions", {"schema": record("x", "x")}, 422, 42201),
        ("POST", "/subjects/{}/versions", {"schema": '{"type": "string"'}, 422, 42201),
        (
            "POST",
            "/subjects/{}/versions",
            {"schema": '{"type": "enum", "name": "e", "symbols": {}}'},
            422,
            42201,
        ),
    ],
    "an attribute of a type makes another schema": [
        ("POST", "/subjects/{}/versions", {"schema": '{"type":"string","unique":"1"}'}, 200, ANY),
        ("POST", "/subjects/{}/versions", {"schema": '{"type":"string","unique":"2"}'}, 200, ANY),
        ("GET", "/subjects/{}/versions", None, 200, [1, 2]),
    ],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_requests_are_answered_as_karapaces_tests_expect(
    registry: RunningRegistry, name: str
) -> None:
    subject = name.replace(" ", "-").replace(",", "")
    for method, path, body, status, content in SEQUENCES[name]:
        found = registry.ask(method, path.format(subject), body)
        assert found.status == status, (method, path, found)
        if content is ANY:
            assert found.content["id"] > 0
        elif status == 200:
            assert found.content == content
        else:
            assert found.code == content
