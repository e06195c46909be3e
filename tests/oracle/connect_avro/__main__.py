"""`python -m tests.oracle.connect_avro`: random rows and Avro, beside a port of Confluent's class.

Half of the questions are rows with a schema: both write them as Avro, the schemas have to be equal
as text, and the bytes have to have the same values. The other half are Avro schemas with bytes:
both read them, and the rows have to be equal as JSON with their schemas. Or both have to refuse. A
difference has one of the `REASONS`, or it is printed as unexplained; then the exit code is 1.
`--golden FILE` keeps the first answers on which both agree, for tests without Java.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from conformance.kafka import fetched
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.converters import ConvertedValue
from streamlog.connect.converters.connect_avro.avro_converter import AvroConverter, AvroFormat
from streamlog.errors import StreamlogError
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.registered.schema_source import RegisteredSchema
from tests.oracle.comparison import Oracle, compare
from tests.oracle.connect.runner import VERSION
from tests.oracle.connect_avro.questions import ROWS, Question, question
from tests.oracle.java import JavaProgram

APICURIO_VERSION: Final = "2.6.13.Final"
SOURCE: Final = Path(__file__).parent / "AvroDataRunner.java"
GOLDEN_MAX: Final = {"equal": 800, "refused": 60}
"""How many cases of each verdict `--golden` keeps."""
REASONS = {
    "year": "Times beyond the year 9999, which Python does not have, are refused.",
    "fixed": "A decimal in a fixed is refused in Java for the name of the fixed, and read here.",
    "null": "A null has a schema here, and none in Java.",
    "alone": "A value of Avro's type null alone is null in Java, and a bad record here.",
    "union": (
        "The port can't read a field whose type is a union of several types with a default. Here it"
        " is read, without the default."
    ),
    "narrow": "An int8 or int16 in a union is refused in Java, and read here.",
    "class": (
        "Of the types of a union that have one class in Java, such as bytes and fixed, the port "
        "takes the first. Here it is the one that was written."
    ),
    "itself": "A record that contains itself is refused: rows have no such types.",
}


class AvroDataJava(JavaProgram):
    """Apicurio's port of AvroData.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        artifacts = ("connect-transforms", "connect-json", "connect-runtime")
        converter, group = "apicurio-registry-utils-converter", "io.apicurio"
        super().__init__(
            SOURCE,
            fetched(f"connect-{VERSION}", artifacts, VERSION),
            fetched(f"apicurio-{APICURIO_VERSION}", [converter], APICURIO_VERSION, group=group),
        )


def avro_of(asked: Question) -> AvroFormat:
    """Return our format by the settings of a question."""
    made = read_settings(AvroConverter, {**asked["settings"], "schema.registry.url": "http://none"})
    return made.format()


def registered(text: str) -> RegisteredSchema:
    """Return an Avro schema as a registry gives it."""
    return RegisteredSchema(1, None, Schema(SchemaType.AVRO, text))


def ours(asked: Question) -> dict[str, Any]:
    """Return our answer to a question."""
    avro = avro_of(asked)
    try:
        if "row" in asked:
            row = ROWS.decode(asked["row"].encode())
            described, _ = avro.described(row.schema)
            found = registered(described.text)
            return {"avro": described.text, "data": avro.writer(row.schema, found)(row.value).hex()}
        found = registered(asked["avro"])
        return {"row": _envelope(avro.reader(found)(bytes.fromhex(asked["data"]), 0))}
    except StreamlogError as error:
        return {"error": str(error)}


def _envelope(row: ConvertedValue) -> str:
    data = ROWS.encode(row.schema, row.value)
    # JsonConverter writes nothing for a null without a schema.
    return "null" if data is None else data.decode()


def judge(asked: Question, theirs: dict[str, Any]) -> str:
    """Return "equal", "refused", one of the reasons, or what differs."""
    mine = ours(asked)
    if "error" in mine and "error" in theirs:
        return "refused"
    if "error" in mine or "error" in theirs:
        found = _reason(asked, mine.get("error", ""), theirs.get("error", ""))
    elif "row" in asked:
        found = "equal" if _same_bytes(asked, mine, theirs) else None
    else:
        found = _rows(json.loads(mine["row"]), json.loads(theirs["row"]))
    return found or f"theirs {theirs}\n      ours {mine}"


def _reason(asked: Question, mine: str, theirs: str) -> str | None:
    """Return the reason for which one side refuses."""
    avro = asked.get("avro", "")
    return next(
        (
            reason
            for reason, is_it in (
                ("year", "not in the years 1 to 9999" in mine),
                ("itself", "contains itself" in mine),
                ("alone", "type null, but in a union" in mine),
                ("narrow", "matching union field" in theirs and '"connect.type"' in avro),
                ("fixed", "Mismatched names" in theirs and '"decimal"' in avro),
                ("union", "Mismatching schema" in theirs and '"default"' in avro),
            )
            if is_it
        ),
        None,
    )


def _rows(mine: Any, theirs: Any) -> str | None:
    if mine == theirs:
        return "equal"
    if theirs is None:
        return "null" if mine["payload"] is None else None
    return "class" if _same_class([mine, theirs]) else None


def _same_class(rows: list[Any]) -> bool:
    """Return whether rows differ only in the member of a union that has the value."""
    schemas, payloads = ([each[part] for each in rows] for part in ("schema", "payload"))
    return schemas[0] == schemas[1] and _without_members(payloads[0]) == _without_members(
        payloads[1]
    )


def _without_members(value: Any) -> Any:
    """Return a row with each struct of which one field has a value as that value."""
    match value:
        case dict():
            kept = {key: _without_members(each) for key, each in value.items() if each is not None}
            return next(iter(kept.values())) if len(kept) == 1 else kept
        case list():
            return [_without_members(each) for each in value]
    return value


def _same_bytes(asked: Question, mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    # In one order: a registry knows a schema by its text. Java's escapes have other letters.
    texts = [json.dumps(json.loads(each["avro"])) for each in (mine, theirs)]
    if texts[0] != texts[1]:
        return False
    if mine["data"] == theirs["data"]:
        return True
    # Entries of maps have no order; those of Java stand as their hashes do.
    read = avro_of(asked).reader(registered(mine["avro"]))
    rows = [read(bytes.fromhex(each["data"]), 0) for each in (mine, theirs)]
    return rows[0] == rows[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the counts."""
    oracle = Oracle("connect_avro", AvroDataJava, question, judge, REASONS, GOLDEN_MAX)
    return compare(oracle, arguments, doc=__doc__, questions=5_000)


if __name__ == "__main__":
    sys.exit(main())
