"""Parsing: references in order, and refusals that name what is wrong."""

from __future__ import annotations

import pytest

from streamlog.errors import InvalidSchema
from streamlog.schemas import Schema, SchemaLimits, SchemaReference, SchemaType, parse_schema


def avro(text: str, *names: str) -> Schema:
    references = tuple(SchemaReference(name, f"{name}-value", 1) for name in names)
    return Schema(SchemaType.AVRO, text, references)


def record(name: str, *types: str) -> str:
    fields = ",".join(f'{{"name":"f{n}","type":"{each}"}}' for n, each in enumerate(types))
    return f'{{"type":"record","name":"{name}","fields":[{fields}]}}'


def test_references_are_read_in_the_order_of_their_dependencies() -> None:
    referenced = {"B": avro(record("B", "A"), "A"), "A": avro(record("A", "int"))}
    parsed = parse_schema(avro(record("C", "B", "A"), "B"), referenced)
    assert parsed.canonical == record("C", "B", "A")
    assert parsed.record_name == "C"


def test_a_circle_of_references_is_refused_with_its_names() -> None:
    referenced = {"B": avro(record("B", "A"), "A"), "A": avro(record("A", "B"), "B")}
    with pytest.raises(InvalidSchema, match="circle: B -> A -> B"):
        parse_schema(avro(record("C", "B"), "B"), referenced)


def test_a_reference_that_is_absent_or_of_another_format_is_refused() -> None:
    with pytest.raises(InvalidSchema, match=r"'B' \(subject B-value, version 1\), which is unk"):
        parse_schema(avro(record("C", "B"), "B"))
    other = Schema(SchemaType.JSON, "{}")
    with pytest.raises(InvalidSchema, match="is AVRO, but it refers to 'B', which is JSON"):
        parse_schema(avro(record("C", "B"), "B"), {"B": other})


def test_a_long_chain_of_references_is_followed_without_recursion() -> None:
    chain = {f"R{n}": avro(record(f"R{n}", "int"), f"R{n + 1}") for n in range(990)}
    chain["R990"] = avro(record("R990", "int"))
    assert parse_schema(avro(record("C", "R0"), "R0"), chain).record_name == "C"
    with pytest.raises(InvalidSchema, match="more than 10 references"):
        parse_schema(avro(record("C", "R0"), "R0"), chain, limits=SchemaLimits(references=10))
