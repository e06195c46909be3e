"""JSON Schema's compatibility: Confluent's examples, all drafts, and random values."""

from __future__ import annotations

import json
import re
import time
from random import Random
from typing import Any

import jsonschema
import pytest

from streamlog.errors import InvalidSchema
from streamlog.schemas import JsonSchema, Schema, SchemaType, incompatibilities, parse_schema
from streamlog.schemas.compatibility import pairs
from streamlog.schemas.compatibility.json_compatibility import json_differences
from streamlog.schemas.compatibility.json_kinds import COMPATIBLE_KINDS, JSON_SENTENCES
from tests.schemas.compatibility.json_cases import CASES, INTEGER, STRING, array, mapping
from tests.schemas.compatibility.karapace_json_cases import NOT_READ, OTHERWISE, READ, SCHEMAS

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def parsed(value: Any) -> JsonSchema:
    found = parse_schema(Schema(SchemaType.JSON, json.dumps(value)))
    assert isinstance(found, JsonSchema)
    return found


def is_read(reader: Any, writer: Any) -> bool:
    return not incompatibilities(parsed(reader), parsed(writer))


@pytest.mark.parametrize(("old", "new", "differences"), CASES)
def test_kinds_and_paths_are_those_of_confluents_registry(
    old: Any, new: Any, differences: str
) -> None:
    found = json_differences(parsed(new).root, parsed(old).root)
    assert [f"{each.kind} {each.path}" for each in found] == [
        each for each in differences.split(", ") if each
    ]


@pytest.mark.parametrize("pair", [*READ.split(), *NOT_READ.split(), *OTHERWISE])
def test_verdicts_are_those_of_karapaces_tests(pair: str) -> None:
    reader, writer = (SCHEMAS[name] for name in pair.split("<"))
    verdict = not OTHERWISE[pair][0] if pair in OTHERWISE else pair in READ.split()
    assert is_read(reader, writer) == verdict


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_reads_what_it_has_written(name: str) -> None:
    assert is_read(SCHEMAS[name], SCHEMAS[name])


def test_each_kind_that_a_reader_does_not_bear_has_a_sentence() -> None:
    kinds = {each.split()[0] for _, _, found in CASES for each in found.split(", ") if each}
    assert kinds - COMPATIBLE_KINDS <= JSON_SENTENCES.keys()
    [found] = incompatibilities(parsed(INTEGER), parsed({"type": "number"}))
    assert found.message == (
        "A type at path '#/' is different between the new schema and the old schema"
    )
    assert found.confluent_text.startswith('{errorType:"TYPE_NARROWED", description:"A type at')


@pytest.mark.parametrize(
    ("draft_7", "later"),
    [
        (
            {"definitions": {"a": STRING}, "$ref": "#/definitions/a"},
            {"$defs": {"a": STRING}, "$ref": "#/$defs/a"},
        ),
        (array(INTEGER), {"type": "array", "prefixItems": [INTEGER]}),
        (
            array(INTEGER, additionalItems=False),
            {"type": "array", "prefixItems": [INTEGER], "items": False},
        ),
        (
            {"type": "object", "dependencies": {"a": ["b"]}},
            {"type": "object", "dependentRequired": {"a": ["b"]}},
        ),
        (
            {"type": "object", "dependencies": {"a": mapping(b=STRING)}},
            {"type": "object", "dependentSchemas": {"a": mapping(b=STRING)}},
        ),
        ({"exclusiveMinimum": 1}, {"exclusiveMinimum": 1}),
    ],
)
@pytest.mark.parametrize("draft", [DRAFT_2019, DRAFT_2020])
def test_drafts_are_read_as_one_another(draft_7: Any, later: Any, draft: str) -> None:
    old, new = {"$schema": DRAFT_7, **draft_7}, {"$schema": draft, **later}
    assert is_read(new, old)
    assert is_read(old, new)


def test_draft_4_has_exclusive_limits_of_its_own() -> None:
    old = {"minimum": 1, "exclusiveMinimum": True}
    assert is_read({"exclusiveMinimum": 1}, old)
    assert is_read(old, {"exclusiveMinimum": 1})
    assert not is_read({"exclusiveMinimum": 2}, old)


def test_keywords_beside_a_ref_count_from_draft_2019_on() -> None:
    new = {"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": STRING}}
    assert is_read(new, STRING)
    assert not is_read({"$schema": DRAFT_2019, **new}, STRING)


def test_recursive_schemas_are_compared() -> None:
    def tree(kind: str) -> dict[str, Any]:
        child = {"type": "array", "items": {"$ref": "#"}}
        return {"type": "object", "properties": {"value": {"type": kind}, "children": child}}

    assert is_read(tree("number"), tree("integer"))
    found = incompatibilities(parsed(tree("integer")), parsed(tree("number")))
    assert [each.path for each in found] == ["#/properties/value"]


def test_a_chain_of_two_uses_each_does_not_double() -> None:
    def chain(kind: str) -> dict[str, Any]:
        ref = "#/definitions/r{}".format
        links: dict[str, Any] = {
            f"r{n}": mapping(a={"$ref": ref(n - 1)}, b={"$ref": ref(n - 1)}) for n in range(1, 40)
        }
        return {"$ref": ref(39), "definitions": {"r0": mapping(x={"type": kind}), **links}}

    found = incompatibilities(parsed(chain("string")), parsed(chain("null")))
    assert [each.kind for each in found] == ["TYPE_CHANGED"]


def test_choices_of_choices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "MAX_PAIRS", 1_000)
    # 40 parts each are 1,600 pairs.
    choice = {"anyOf": [{"enum": [n]} for n in range(40)]}
    with pytest.raises(InvalidSchema, match="more than 1000 pairs of types"):
        is_read(choice, choice)


KEYS = "abc"


def random_schema(chance: Random, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind
    """Return a schema of the keywords whose rules promise that what fits stays valid."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", True]
    kinds += ["object", "object", "array", "anyOf"] if depth < 3 else []
    kind = chance.choice(kinds)
    match kind:
        case "object":
            return _random_mapping(chance, depth)
        case "array":
            return {"type": "array", "items": random_schema(chance, depth + 1)}
        case "anyOf":
            return {
                "anyOf": [random_schema(chance, depth + 1) for _ in range(chance.randint(1, 3))]
            }
        case "enum":
            return {"enum": chance.sample([1, 2, "a", "b", None], chance.randint(1, 4))}
        case "string":
            return _limited(chance, "string", "minLength", "maxLength")
        case "integer" | "number":
            return _limited(chance, str(kind), "minimum", "maximum")
        case True:
            return True
        case _:
            return {"type": kind}


def _limited(chance: Random, kind: str, low: str, high: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind}
    if chance.random() < 0.3:
        found[low] = chance.randint(0, 2)
    if chance.random() < 0.3:
        found[high] = chance.randint(1, 4)
    return found


def _random_mapping(chance: Random, depth: int) -> dict[str, Any]:
    names = [each for each in KEYS if chance.random() < 0.5]
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(chance, depth + 1) for name in names},
        "required": [name for name in names if chance.random() < 0.4],
    }
    rest = chance.choice((True, False, None))
    if rest is not True:
        found["additionalProperties"] = False if rest is False else random_schema(chance, depth + 1)
    return found


def random_value(chance: Random, depth: int = 0) -> Any:
    values = [None, True, 0, 1, 2, 3.5, "", "a", "b", "abc"]
    if depth < 3 and chance.random() < 0.5:
        if chance.random() < 0.3:
            return [random_value(chance, depth + 1) for _ in range(chance.randint(0, 2))]
        return {each: random_value(chance, depth + 1) for each in KEYS if chance.random() < 0.4}
    return chance.choice(values)


def changed(schema: Any, chance: Random) -> Any:
    """Return a schema of which one part is another one."""
    if not isinstance(schema, dict) or chance.random() < 0.2:
        return random_schema(chance, 2)
    found = dict(schema)
    match found:
        case {"properties": {**properties}} if properties and chance.random() < 0.6:
            name = chance.choice(sorted(properties))
            properties[name] = changed(properties[name], chance)
            found["properties"] = properties
        case {"properties": _}:
            found.pop(chance.choice(("required", "additionalProperties")), None)
        case {"items": items}:
            found["items"] = changed(items, chance)
        case {"anyOf": parts}:
            found["anyOf"] = [*parts, random_schema(chance, 2)]
        case _:
            extra = [key for key in found if key != "type"]
            if extra:
                del found[chance.choice(extra)]
    return found or True


def test_what_fits_the_old_schema_fits_a_compatible_new_one() -> None:
    compatible = refused = shown = 0
    for seed in range(500):
        chance = Random(seed)
        old = random_schema(chance)
        new = changed(old, chance) if chance.random() < 0.8 else random_schema(chance)
        before, after = (jsonschema.Draft7Validator(each) for each in (old, new))
        values = [random_value(chance) for _ in range(40)]
        broken = [x for x in values if before.is_valid(x) and not after.is_valid(x)]
        if is_read(new, old):
            assert not broken, f"seed {seed}: {old} -> {new}: {broken[0]}"
            compatible += 1
        else:
            refused += 1
            shown += bool(broken)
    assert compatible > 200
    assert shown > refused / 2


@pytest.mark.parametrize("pattern", [r"\p{L}", "a" * 5000, "(?=a)b", "("])
def test_what_a_pattern_can_not_be_searched_for_is_compared(pattern: str) -> None:
    old = {**mapping(False, x=STRING)}
    new = {"additionalProperties": False, "patternProperties": {pattern: INTEGER}}
    found = incompatibilities(parsed(new), parsed(old))
    assert found[-1].kind.startswith("PROPERTY_REMOVED_NOT_COVERED")


def test_a_pattern_that_backtracks_takes_no_time() -> None:
    name = "a" * 40 + "!"
    old = mapping(False, **{name: STRING})
    new = {"additionalProperties": False, "patternProperties": {"^(a+)+$": STRING}}
    start = time.process_time()
    assert not is_read(new, old)
    with pytest.raises(re.error):
        re.compile("(")
    assert time.process_time() - start < 1
