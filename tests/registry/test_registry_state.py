"""The replay of `_schemas`: records of other registries, and laws over random histories."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from streamlog.registry.deletions import delete_subject, delete_version
from streamlog.registry.refusals import RegistryRefusal
from streamlog.registry.registry_state import Mode, RegistryState, SchemaContent
from streamlog.registry.schema_registration import PlannedWrite, SchemaBody, decide, prepare
from streamlog.registry.subject_names import qualify, relative_name, resource_of
from streamlog.registry.topic_records import RecordKey
from streamlog.schemas.compatibility import CompatibilityLevel


def entry(key: dict[str, Any], value: dict[str, Any] | None) -> tuple[bytes, bytes | None]:
    return json.dumps(key).encode(), None if value is None else json.dumps(value).encode()


def schema_entry(
    subject: str, version: int, schema_id: int, schema: str, **more: Any
) -> tuple[bytes, bytes | None]:
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": schema_id, "schema": schema, **more}
    return entry(key, {"deleted": False, **value})


def replay(*entries: tuple[bytes, bytes | None]) -> RegistryState:
    state = RegistryState()
    for key, value in entries:
        assert state.apply(key, value) is None
    return state


def test_a_topic_of_confluents_registry_is_read() -> None:
    state = replay(
        entry({"keytype": "NOOP", "magic": 0}, None),
        schema_entry("orders-value", 1, 1, '"string"'),
        # Newer releases add members, which are skipped, and name the type and the references.
        schema_entry(
            "orders-value",
            2,
            2,
            '{"type":"object"}',
            schemaType="JSON",
            references=[{"name": "a.json", "subject": "a", "version": 1}],
            md5Bytes="x",
            ts=1,
            offset=9,
        ),
        entry({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"}),
        entry(
            {"keytype": "CONFIG", "subject": "orders-value", "magic": 0},
            {"subject": "orders-value", "compatibilityLevel": "NONE", "validateFields": True},
        ),
        entry({"keytype": "MODE", "subject": "orders-value", "magic": 0}, {"mode": "READONLY"}),
        entry(
            {"keytype": "CONTEXT", "tenant": "default", "context": ".c", "magic": 0},
            {"tenant": "default", "context": ".c"},
        ),
        schema_entry("gone", 1, 3, '"long"'),
        entry(
            {"keytype": "DELETE_SUBJECT", "subject": "gone", "magic": 0},
            {"subject": "gone", "version": 1},
        ),
        schema_entry("gone", 2, 4, '"float"'),
    )
    assert [each.version for each in state.versions("orders-value")] == [1, 2]
    second = state.version("orders-value", 2)
    assert second is not None
    assert second.content.schema.references[0].subject == "a"
    assert state.level("orders-value") is CompatibilityLevel.NONE
    assert state.level("others") is CompatibilityLevel.FULL
    assert state.mode("orders-value") is Mode.READONLY
    assert [each.version for each in state.versions("gone")] == [2]
    assert [each.version for each in state.versions("gone", deleted=True)] == [1, 2]
    assert state.max_ids() == {".": 4}


def test_records_that_no_registry_writes_are_skipped() -> None:
    state = RegistryState()
    bad: list[tuple[bytes | None, bytes | None]] = [
        (None, b"{}"),
        (b"", None),
        (b"\xff", b"{}"),
        (b"[" * 100_000, b"{}"),
        (b'{"keytype":"OTHER"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":0}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b"{}"),
        (b'{"keytype":"CONFIG","subject":"s"}', b'{"compatibilityLevel":"SOMEHOW"}'),
        (b'{"keytype":"CONFIG","subject":"s"}', b"[" * 100_000),
        (b'{"keytype":"MODE","subject":"s"}', b'{"mode":"NEVER"}'),
    ]
    for key, value in bad:
        assert state.apply(key, value) is not None, key
    assert state.unreadable == len(bad)
    assert list(state.subjects()) == []


def test_a_key_is_deleted_in_the_spelling_that_the_topic_has() -> None:
    spelt = b'{ "subject": "s", "version": 1, "magic": 1, "keytype": "SCHEMA" }'
    value = json.dumps({"subject": "s", "version": 1, "id": 1, "schema": '"int"'}).encode()
    state = RegistryState()
    assert state.apply(spelt, value) is None
    delete = delete_subject(state, "s", permanent=False)
    apply(state, delete)
    removed = delete_subject(state, "s", permanent=True)
    assert state.key_bytes(removed.records[0].key) == spelt


def test_the_first_schema_with_an_id_keeps_it() -> None:
    state = replay(schema_entry("a", 1, 1, '"int"'))
    assert "which another schema has" in (state.apply(*schema_entry("b", 1, 1, '"long"')) or "")
    assert list(state.subjects()) == ["a"]
    assert state.apply(*schema_entry("b", 1, 1, '"int"')) is None


def test_names_belong_to_contexts_and_topics() -> None:
    assert qualify(":.c:s") == (".c", "s")
    assert qualify(":c:s") == (".", ":c:s")
    assert relative_name("a", ":.c:s") == ":.c:a"
    assert relative_name(":.d:a", ":.c:s") == ":.d:a"
    assert [resource_of(name) for name in ("o-value", ":.c:o-key", "com.R", "-value")] == [
        "o",
        "o",
        "com.R",
        "-value",
    ]


def apply(state: RegistryState, write: PlannedWrite) -> None:
    for record in write.records:
        assert state.apply(state.key_bytes(record.key), record.encode_value()) is None


class Model:
    """What a registry promises, as plainly as possible: subjects, versions, and used ids."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, int], tuple[str, bool]] = {}
        self.ids: dict[str, int] = {}
        self.used = 0

    def register(self, subject: str, text: str) -> int:
        live = [
            number
            for (name, number), (own, deleted) in self.versions.items()
            if name == subject and own == text and not deleted
        ]
        if not live:
            if text not in self.ids:
                self.used += 1
                self.ids[text] = self.used
            numbers = [number for name, number in self.versions if name == subject]
            number = max(numbers, default=0) + 1
            for name, old in list(self.versions):
                if name == subject and self.versions[name, old] == (text, True):
                    del self.versions[name, old]
            self.versions[subject, number] = text, False
        return self.ids[text]

    def delete(self, subject: str, number: int, *, permanent: bool) -> bool:
        found = self.versions.get((subject, number))
        if found is None or found[1] != permanent:
            return False
        if permanent:
            del self.versions[subject, number]
            if found[0] not in {text for text, _ in self.versions.values()}:
                del self.ids[found[0]]
        else:
            self.versions[subject, number] = found[0], True
        return True


def compact(entries: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """Keep the newest record of each key, and no deletions, as compaction does in the end."""
    newest = {key: place for place, (key, _) in enumerate(entries)}
    return [
        (key, value)
        for place, (key, value) in enumerate(entries)
        if newest[key] == place and value is not None
    ]


def seen(state: RegistryState) -> dict[tuple[str, int], tuple[str, bool]]:
    return {
        (each.subject, each.version): (each.content.schema.text, each.is_deleted)
        for name in state.subjects()
        for each in state.versions(name, deleted=True)
    }


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_match_a_simple_model_also_after_compaction(seed: int) -> None:
    chance = random.Random(seed)
    state, model = RegistryState(), Model()
    written: list[tuple[bytes, bytes | None]] = []
    for _ in range(120):
        subject = chance.choice(["a", "b", "c"])
        text = json.dumps(chance.choice(["int", "long", "float", "double", "string"]))
        number = chance.randint(1, 6)
        permanent = chance.random() < 0.5
        if chance.random() < 0.5:
            plan = register(state, subject, text)
            assert plan.answer == {"id": model.register(subject, text)}
        else:
            is_possible = model.delete(subject, number, permanent=permanent)
            try:
                plan = delete_version(state, subject, number, permanent=permanent)
            except RegistryRefusal:
                assert not is_possible
                continue
            assert is_possible
        records = [(state.key_bytes(each.key), each.encode_value()) for each in plan.records]
        apply(state, plan)
        written += records
        assert seen(state) == model.versions
        for text, schema_id in model.ids.items():
            content = state.context(".").contents.get(schema_id)
            assert content is not None
            assert content.schema.text == text
        # A broker that starts now, on a topic that is compacted, gives out the same ids.
        again = replay(*compact(written))
        assert seen(again) == model.versions
        assert again.max_ids() == state.max_ids()


def register(state: RegistryState, subject: str, text: str) -> PlannedWrite:
    candidate = prepare(state, subject, SchemaBody(schema=text), normalize=None)
    content = SchemaContent(candidate.resolved.schema)
    existing = state.registered(subject, content)
    if existing is not None:
        return PlannedWrite((), {"id": existing.id})
    return decide(state, candidate, content, [])


def test_keys_are_written_as_confluent_writes_them() -> None:
    state = RegistryState()
    plan = register(state, ":.c:s", '"int"')
    assert [each.key.encode() for each in plan.records] == [
        b'{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}',
        b'{"keytype":"SCHEMA","subject":":.c:s","version":1,"magic":1}',
    ]
    assert plan.records[1].encode_value() == (
        b'{"subject":":.c:s","version":1,"id":1,"schema":"\\"int\\"","deleted":false}'
    )
    assert RecordKey(plan.records[0].key.type, "x").subject == "x"
