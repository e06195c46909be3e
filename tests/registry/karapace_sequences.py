"""What karapace's REST tests of its schema registry expect, as data in our own words.

The names are those of its tests (Aiven-Open/karapace, `tests/integration`: `test_schema`,
`test_schema_registry_mode`, `test_schema_avro_references`, `test_deleted_flag`). Where karapace
answers otherwise than Confluent's registry, the answer is a `Differs`: theirs, ours, and the
reason.

Left out: `test_malformed_kafka_message` (a schema that is not one of its format is skipped here,
logged and counted), `test_common_endpoints` and `test_http_headers` (in `test_rest_server`), and
what is karapace's alone: its REST proxy, its authorization file, the messages of Python's Avro.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

ANY = object()
"""Any answer with this status."""


@dataclass(frozen=True)
class Differs:
    """An answer that is not karapace's."""

    theirs: Any
    ours: Any
    reason: str


@dataclass(frozen=True)
class Step:
    """A request and its answer: `{}` in a path is the subject, `{name}` an id kept by `keep`."""

    method: str
    path: str
    body: Any = None
    status: Any = 200
    content: Any = ANY
    keep: str = ""
    """The name for the `id` of the answer."""


def register(
    schema: Any, status: Any = 200, *, of: str = "", keep: str = "", content: Any = ANY, **more: Any
) -> Step:
    body = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
    return Step("POST", f"/subjects/{{}}{of}/versions", body, status, content, keep)


def level(name: str, of: str = "") -> Step:
    return Step("PUT", f"/config/{{}}{of}", {"compatibility": name}, 200, {"compatibility": name})


def get(path: str, status: Any = 200, content: Any = ANY) -> Step:
    return Step("GET", path, None, status, content)


def delete(path: str, status: Any = 200, content: Any = ANY) -> Step:
    return Step("DELETE", path, None, status, content)


def compare(schema: Any, fits: bool) -> Step:
    body = {"schema": json.dumps(schema)}
    path = "/compatibility/subjects/{}/versions/latest"
    return Step("POST", path, body, 200, {"is_compatible": fits})


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a record; a name is a field of text."""
    declared = [
        {"name": each, "type": "string"} if isinstance(each, str) else each for each in fields
    ]
    return {"type": "record", "name": name, "fields": declared, **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def text(number: int) -> str:
    """Return one of several schemas of text."""
    return json.dumps({"type": "string", "unique": number})


COUNTRY = record("name", "code", name="Country", namespace="com.netapp")
ADDRESS = record("street", field("country", "Country"), name="Address", namespace="com.netapp")
JOB = record("title", field("salary", "double"), name="Job", namespace="com.netapp")


def person(age: str = "int", name: str = "Person", *more: Any) -> dict[str, Any]:
    fields = ("name", field("age", age), field("job", "Job"), *more)
    return record(*fields, name=name, namespace="com.netapp")


def refers(of: str) -> list[dict[str, Any]]:
    return [{"name": f"{of}.avsc", "subject": f"{{}}-{of}", "version": 1}]


BASE = [
    register(COUNTRY, of="-country"),
    register(ADDRESS, of="-address", references=refers("country")),
    register(JOB, of="-job"),
    register(person(), of="-person", references=refers("job")),
]
NO_LEVEL = Differs(
    40401, 40408, "a subject without a level of its own is known: Confluent has a code for that"
)
SKIPPED = "fields that a newer client sends are skipped, as by Confluent's registry"
LEVEL_ERROR = (422, 42203)
SEQUENCES: dict[str, list[Step]] = {
    "missing_subject_compatibility": [
        register('{"type":"string"}'),
        get("/config/{}", 404),
        get("/config/{}?defaultToGlobal=false", 404),
        get("/config/{}?defaultToGlobal=true"),
    ],
    "compatibility_endpoint": [
        register(record(field("age", "int"))),
        level("BACKWARD"),
        compare(record(field("age", "long")), fits=True),
        compare(record(field("age", "string")), fits=False),
    ],
    "transitive_compatibility": [
        level("BACKWARD_TRANSITIVE"),
        register(record(field("age", "int"))),
        register(record(field("age", "int"), field("first", "string", default="x"))),
        # The second version has the field, the first one lacks it.
        register(record(field("age", "int"), "first", field("last", "string", default="y")), 409),
    ],
    "schema_versions_multiple_subjects_same_schema": [
        register(record("f1", "f2", name="Shared{}"), keep="id"),
        get("/schemas/ids/{id}/versions", 200, [{"subject": "{}", "version": 1}]),
        register(record("f1", "f2", name="Shared{}"), of="-2", content={"id": "{id}"}),
        register(record("f1", name="Shared{}"), of="-3", keep="other"),
        get(
            "/schemas/ids/{id}/versions",
            200,
            [{"subject": "{}", "version": 1}, {"subject": "{}-2", "version": 1}],
        ),
        get("/schemas/ids/{other}/versions", 200, [{"subject": "{}-3", "version": 1}]),
    ],
    "schema_versions_deleting": [
        register(record("field_1", "field_2", name="Deleting"), keep="id"),
        level("BACKWARD"),
        register(record("field_1", name="Deleting"), keep="other"),
        delete("/subjects/{}/versions/1", 200, 1),
        get(
            "/schemas/ids/{id}/versions",
            200,
            [],
        ),
        get("/schemas/ids/{other}/versions", 200, [{"subject": "{}", "version": 2}]),
        delete("/subjects/{}", 200, [2]),
        get("/schemas/ids/{other}/versions", 200, []),
    ],
    "schema_types": [get("/schemas/types", 200, ["JSON", "PROTOBUF", "AVRO"])],
    "schema_repost": [
        register(text(1), keep="id"),
        get("/schemas/ids/{id}", 200, {"schema": '{"type":"string","unique":1}'}),
        register(text(1), content={"id": "{id}"}),
    ],
    "schema_missing_body": [Step("POST", "/subjects/{}/versions", {}, 422, 42201)],
    "schema_non_existing_id": [get("/schemas/ids/123456789", 404, 40403)],
    "schema_non_invalid_id": [get("/schemas/ids/invalid", 404, 404)],
    "schema_subject_invalid_id": [
        register(text(2)),
        get("/subjects/{}/versions/0", 422, 42202),
        get("/subjects/{}/versions/15", 404, 40402),
    ],
    "schema_subject_post_invalid": [
        register('{"type":"string"}'),
        Step(
            "POST",
            "/subjects/{}",
            {"schema": '{"type":"invalid_type"}'},
            Differs(
                500, 422, "a schema that is invalid is the client's error, wherever it is sent"
            ),
            42201,
        ),
        Step("POST", "/subjects/{}-2", {"schema": '{"type":"string"}'}, 404, 40401),
        Step("POST", "/subjects/{}", {"schema": '{"type":"int"}'}, 404, 40403),
        Step(
            "POST",
            "/subjects/{}",
            {},
            Differs(500, 422, "a body without a schema is the client's error"),
            42201,
        ),
        Step("POST", "/subjects/{}-3", {}, 404, 40401),
    ],
    "schema_lifecycle": [
        register(text(3), keep="id"),
        register(text(4), keep="other"),
        get("/schemas/ids/{other}/versions", 200, [{"subject": "{}", "version": 2}]),
        get("/subjects?subjectPrefix={}", 200, ["{}"]),
        get("/subjects/{}/versions", 200, [1, 2]),
        delete("/subjects/{}/versions/1", 200, 1),
        # Its versions are gone, the schema is not: records may still name it.
        get("/schemas/ids/{id}"),
        get("/schemas/ids/{id}/versions", 200, []),
        delete("/subjects/{}", 200, [2]),
        get("/subjects?subjectPrefix={}", 200, []),
        register(text(5)),
        get("/subjects/{}/versions", 200, [3]),
        delete("/subjects/{}/versions/3", 200, 3),
        get("/subjects?subjectPrefix={}", 200, []),
        get("/subjects/{}/versions", 404, 40401),
        get("/subjects/{}/versions/latest", 404, 40401),
        register(text(6)),
        get("/subjects/{}/versions", 200, [4]),
    ],
    "schema_version_numbering": [
        register(record("first", name="Numbered")),
        level("FORWARD"),
        register(record("first", "last", name="Numbered")),
        get("/subjects/{}/versions", 200, [1, 2]),
        delete("/subjects/{}", 200, [1, 2]),
        register(record("first", name="Numbered")),
        get("/subjects/{}/versions", 200, [3]),
    ],
    "schema_three_subjects_sharing_schema": [
        register(record("a", name="Three"), keep="id"),
        register(record("a", name="Three"), of="-2", content={"id": "{id}"}),
        level("NONE", of="-3"),
        register('{"type":"string"}', of="-3"),
        register(record("a", name="Three"), of="-3", content={"id": "{id}"}),
    ],
    "schema_subject_version_schema": [
        register(record("x")),
        get("/subjects/{}/versions/1/schema", 200, record("x")),
        get("/subjects/{}-2/versions/1/schema", 404, 40401),
        get("/subjects/{}/versions/2/schema", 404, 40402),
        get("/subjects/{}/versions/latest/schema", 200, record("x")),
    ],
    "schema_same_subject": [
        register('{"type":"string","same":1}', keep="id"),
        Step(
            "POST",
            "/subjects/{}",
            {"schema": '{"type":"string","same":1}'},
            200,
            {
                "subject": "{}",
                "id": "{id}",
                "version": 1,
                "schema": '{"type":"string","same":1}',
            },
        ),
    ],
    "schema_version_number_existing_schema": [
        level("NONE"),
        register(record("v1", name="Reused"), keep="id"),
        register(record("v2", name="Reused")),
        level("NONE", of="-2"),
        register(record("v1", name="Reused"), of="-2", content={"id": "{id}"}),
        register(record(field("v3", "int"), name="Reused"), of="-2"),
    ],
    "config": [
        Step("PUT", "/config", {"compatibility": "FULL"}, 200, {"compatibility": "FULL"}),
        get("/config", 200, {"compatibilityLevel": "FULL"}),
        Step("PUT", "/config", {"compatibility": "nonexistentmode"}, *LEVEL_ERROR),
        Step("PUT", "/config", {"compatibility": "BACKWARD"}),
        register('{"type":"string"}'),
        get("/config/{}", 404, NO_LEVEL),
        level("FULL"),
        get("/config/{}", 200, {"compatibilityLevel": "FULL"}),
        # A subject may have a level before it has a schema; it is no subject by that.
        level("FULL", of="-2"),
        get("/subjects/{}-2/versions", 404),
        register('{"type":"string"}', of="-2"),
        get("/config/{}-2", 200, {"compatibilityLevel": "FULL"}),
        level("NONE", of="-3"),
        get("/config/{}-3", 200, {"compatibilityLevel": "NONE"}),
    ],
    "schema_body_validation": [
        Step(
            "POST",
            "/subjects/{}/versions",
            {"invalid_field": "x"},
            422,
            Differs(422, 42201, SKIPPED),
        ),
        Step(
            "POST",
            "/subjects/{}/versions",
            {"schema": '"string"', "other": "x"},
            Differs(422, 200, SKIPPED),
        ),
        Step(
            "POST",
            "/subjects/{}/versions",
            "invalid",
            Differs(500, 422, "a body that is no object is the client's error"),
            422,
        ),
    ],
    "version_number_validation": [
        register('{"type":"string"}'),
        get("/subjects/{}/versions/0", 422, 42202),
        get("/subjects/{}/versions/0/schema", 422, 42202),
        get("/subjects/{}/versions/invalid", 422, 42202),
        get("/subjects/{}/versions/invalid/schema", 422, 42202),
        get("/subjects/{}/versions/latest"),
    ],
    "invalid_namespace": [
        register(
            record(name="foo", namespace="foo-bar-baz"),
            Differs(200, 422, "a namespace with a hyphen is no name of Avro (Avro, Names)"),
            content=42201,
        ),
    ],
    "invalid_schemas": [register(record("name", "name"), 422, content=42201)],
    "schema_hard_delete_version": [
        register(record("a", name="Hard")),
        register(record("a", field("b", "string", default=""), name="Hard")),
        delete("/subjects/{}/versions/1?permanent=true", 404, 40407),
        delete("/subjects/{}/versions/1", 200, 1),
        delete("/subjects/{}/versions/1", 404, 40406),
        get("/subjects/{}/versions/1", 404, 40402),
        delete("/subjects/{}/versions/1?permanent=true", 200, 1),
        delete("/subjects/{}/versions/1?permanent=true", 404, 40402),
    ],
    "schema_hard_delete_whole_schema": [
        register(record("a", name="Whole")),
        register(record("a", field("b", "string", default=""), name="Whole")),
        delete("/subjects/{}?permanent=true", 404, 40405),
        delete("/subjects/{}", 200, [1, 2]),
        get("/subjects/{}/versions", 404, 40401),
        delete("/subjects/{}?permanent=true", 200, [1, 2]),
        get("/subjects/{}/versions", 404, 40401),
    ],
    "schema_hard_delete_and_recreate": [
        register(record("recreated", name="Recreated{}"), keep="id"),
        delete("/subjects/{}"),
        register(record("recreated", name="Recreated{}"), content={"id": "{id}"}),
        delete("/subjects/{}"),
        delete("/subjects/{}?permanent=true"),
        get("/subjects/{}/versions", 404, 40401),
        register(
            record("recreated", name="Recreated{}"),
            content=Differs(
                {"id": "{id}"},
                ANY,
                "what is deleted for good is gone: an equal schema is a new one",
            ),
        ),
    ],
    "invalid_schema_should_provide_good_error_messages": [
        register('{"type":"string"', 422, content=42201),
        register({"type": "enum", "name": "error"}, 422, content=42201),
        register({"type": "enum", "name": "error", "symbols": {}}, 422, content=42201),
        register(
            {"type": "enum", "name": "error", "symbols": ["A", "B"]},
            Differs(
                422, 200, "`error` is a keyword of protocols, and a name like others in schemas"
            ),
        ),
    ],
    "global_mode": [get("/mode", 200, {"mode": "READWRITE"})],
    "subject_mode": [
        register(record("f", name="Mode")),
        get(
            "/mode/{}",
            Differs(200, 404, "a mode that was not set is asked for with defaultToGlobal"),
            40409,
        ),
        get("/mode/{}?defaultToGlobal=true", 200, {"mode": "READWRITE"}),
        get(
            "/mode/{}-2",
            404,
            Differs(40401, 40409, "as a subject that exists, it has no mode of its own"),
        ),
    ],
    "basic_avro_references": [
        *BASE,
        Step(
            "POST",
            "/subjects/{}-address",
            {"schema": json.dumps(ADDRESS), "references": refers("country")},
        ),
        get("/subjects/{}-person/versions/latest"),
        get("/subjects/{}-job/versions/1/referencedby"),
    ],
    "avro_references_compatibility": [
        *BASE,
        Step(
            "POST",
            "/compatibility/subjects/{}-person/versions/latest",
            {"schema": json.dumps(person("long")), "references": refers("job")},
            200,
            {"is_compatible": True},
        ),
        Step(
            "POST",
            "/compatibility/subjects/{}-person/versions/latest",
            {"schema": json.dumps(person("string")), "references": refers("job")},
            200,
            {"is_compatible": False},
        ),
    ],
    "avro_union_references": [
        *BASE,
        register(
            person("int", "Person2", field("children", ["null", record("name", name="Child")])),
            of="-person2",
            references=refers("job"),
        ),
    ],
    "avro_union_references2": [
        *BASE,
        register(
            [person(), record("name", name="Unemployed", namespace="com.netapp")],
            of="-person2",
            references=refers("job"),
        ),
    ],
    "avro_incompatible_name_references": [
        *BASE,
        register(
            {**ADDRESS, "name": "ChangedAddress"}, 409, of="-address", references=refers("country")
        ),
    ],
    "recursive_reference": [
        *BASE,
        register(
            person("int", "Recursive", field("father", "Recursive")),
            of="-recursive",
            references=refers("job"),
        ),
    ],
    "indirect_recursive_reference": [
        *BASE,
        register(
            record("title", field("consultant", "Person"), name="Indirect", namespace="com.netapp"),
            of="-indirect",
            references=refers("person"),
        ),
    ],
    "deleted_flag_present_for_soft_deleted_version": [
        register(record("field1", name="Soft")),
        delete("/subjects/{}/versions/1", 200, 1),
        get("/subjects/{}/versions/1?deleted=true", 200, {"deleted": True, "version": 1}),
    ],
    "deleted_flag_present_and_false_for_live_version": [
        register(record("field1", name="Live")),
        get(
            "/subjects/{}/versions/1?deleted=true",
            200,
            Differs({"deleted": False}, {"version": 1}, "the flag is there if it is set"),
        ),
    ],
}
