"""`python -m tests.oracle.connect_values`: random JSON through Kafka Connect's converters and ours.

Both read the JSON with JsonConverter, and show the value: by JsonConverter again, by
StringConverter, by SimpleHeaderConverter, and by Cast to each type. What they show has to be equal,
or both have to refuse. A difference has one of the `REASONS`, or it is printed as unexplained; then
the exit code is 1. `--golden FILE` keeps the first answers on which both agree, for tests without
Java.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from conformance.kafka import fetched
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.converters import ConvertedValue, JsonConverter
from streamlog.connect.converters.converter import StringConverter
from streamlog.connect.converters.json_schemas import CONNECT_LOGICAL
from streamlog.connect.header_values import header_bytes
from streamlog.connect.java_values import single
from streamlog.connect.schema_record import SchemaRecord, with_schemas
from streamlog.connect.transforms.transform_chain import TransformChain, chain_of
from streamlog.errors import StreamlogError
from tests.oracle.comparison import Oracle, compare
from tests.oracle.connect.runner import EPOCH, VERSION
from tests.oracle.connect_values.questions import Question, question
from tests.oracle.java import JavaProgram

SOURCE: Final = Path(__file__).parent / "ValuesRunner.java"
GOLDEN_MAX: Final = {"equal": 1_200, "refused": 200}
"""How many cases of each verdict `--golden` keeps."""
REASONS: Final = {
    "lenient": "What does not fit its type is 0, false or null in Java, and refused here.",
    "cast": "Cast of a whole Decimal or date keeps the type's name in Java, and nothing reads it.",
    "struct": "A struct as a default is refused in Java, which finds that it has another schema.",
    "unread": "A default that is none of its type is refused in Java, and here where it is needed.",
    "version": "Kafka's logical types have version 1 here, whatever their schema says.",
    "julian": "Java's dates before 1582 are those of the Julian calendar.",
    "written": "A default in a schema is written as it was read.",
    "kind": "Text with the name of one of Kafka's logical types is that type in Java, text here.",
    "bytes": "Java shows bytes by their address.",
    "digits": (
        "JDK 17 writes some numbers with more digits than they need. A float32 without a schema is"
        " a float64 here."
    ),
}


class ValuesJava(JavaProgram):
    """Kafka Connect's converters.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        artifacts = ("connect-transforms", "connect-json", "connect-runtime")
        super().__init__(SOURCE, fetched(f"connect-{VERSION}", artifacts, VERSION))


def ours(asked: Question) -> dict[str, Any]:
    """Return our answer to a question."""
    try:
        converter = read_settings(JsonConverter, asked["settings"])
        converter.check()
        read = converter.decode(asked["data"].encode())
    except StreamlogError as error:
        return {"error": str(error)}
    shown: dict[str, Callable[[], bytes | None]] = {
        "json": lambda: converter.encode(read.schema, read.value),
        "text": lambda: StringConverter().encode(read.schema, read.value),
        "header": lambda: header_bytes(read.value, read.schema),
    }
    answer = {name: _shown(each) for name, each in shown.items()}
    return answer | {kind: _shown(lambda kind=kind: _cast(kind, read)) for kind in asked["casts"]}


@cache
def _chain(kind: str) -> TransformChain:
    named = {"transforms": "t", "transforms.t.type": "Cast$Value"}
    return chain_of({**named, "transforms.t.spec": kind})


def _cast(kind: str, read: ConvertedValue) -> bytes | None:
    record: SchemaRecord[object, object] = SchemaRecord(
        key=None, value=read.value, timestamp=EPOCH, headers=(), topic="t", partition=0, offset=0,
        value_schema=read.schema,
    )  # fmt: skip
    changed = _chain(kind)(record)
    assert changed is not None
    return JsonConverter().encode(with_schemas(changed).value_schema, changed.value)


def _shown(show: Callable[[], bytes | None]) -> Any:
    try:
        found = show()
    except StreamlogError as error:
        return {"error": str(error)}
    return None if found is None else found.decode()


def judge(asked: Question, theirs: dict[str, Any]) -> str:
    """Return "equal", "refused", one of the reasons, or what differs."""
    mine = ours(asked)
    if "error" in mine and "error" in theirs:
        return "refused"
    schema = asked["data"] + asked["settings"].get("schema.content", "")
    if _TYPED_TEXT.search(schema):
        return "kind"
    if "error" in mine or "error" in theirs:
        found = _refusal(mine.get("error", ""), theirs.get("error", ""))
        if _NULL_WITHIN_DEFAULT.search(schema):
            found = found or "unread"
        return found or f"theirs {theirs}\n      ours {mine}"
    reasons = ""
    for name, own in mine.items():
        if not _is_equal(name, own, theirs[name]):
            reason = _reason(name, own, theirs[name])
            if reason is None:
                return f"{name}: theirs {theirs[name]}\n      ours {own}"
            reasons = reasons or reason
    return reasons or "equal"


def _is_equal(name: str, mine: Any, theirs: Any) -> bool:
    if isinstance(mine, dict) or isinstance(theirs, dict):
        return isinstance(mine, dict) and isinstance(theirs, dict)
    if name in ("text", "header") or mine is None or theirs is None:
        return bool(mine == theirs)
    return bool(json.loads(mine) == json.loads(theirs))


def _refusal(mine: str, theirs: str) -> str | None:
    """Return the reason for which one side can't read the JSON."""
    return next(
        (
            reason
            for reason, is_it in (
                ("lenient", re.search(r"(is no |Invalid bytes)", mine)),
                ("struct", "Invalid default value" in theirs),
                ("unread", _UNREAD.search(theirs)),
            )
            if is_it
        ),
        None,
    )


def _reason(name: str, mine: Any, theirs: Any) -> str | None:
    """Return the reason for which what is shown differs."""
    if isinstance(theirs, dict):
        if isinstance(mine, dict):
            return None
        if "Invalid type for" in theirs["error"]:
            return "cast"
        return "unread" if _UNREAD.search(theirs["error"]) else None
    if isinstance(mine, dict):
        return None
    is_json = name not in ("text", "header")
    return next(
        (
            reason
            for reason, is_it in (
                ("bytes", "[B@" in theirs),
                ("version", is_json and _without_version(mine) == _without_version(theirs)),
                ("julian", name == "text" and _EARLY.search(mine)),
                ("digits", _singles(name, mine) == _singles(name, theirs)),
                ("written", is_json and _without_defaults(mine) == _without_defaults(theirs)),
            )
            if is_it
        ),
        None,
    )


_TYPED_TEXT: Final = re.compile(rf'"type": "string"[^{{}}]*"name": "{re.escape(CONNECT_LOGICAL)}')
_NULL_WITHIN_DEFAULT: Final = re.compile(r'"default": [{\[][^}\]]*null')
_UNREAD: Final = re.compile(
    "Invalid type for Decimal|invalid map entry|mismatching scale|Time values must use"
)
_EARLY: Final = re.compile(r" UTC (\d{1,3}|1[0-4]\d\d|15[0-8]\d)\b")
"""The year of a date before the Gregorian calendar."""


def _without_version(text: str) -> str:
    return re.sub(rf'({re.escape(CONNECT_LOGICAL)}\w+")(,"version":-?\d+)?', r"\1", text)


def _without_defaults(text: str) -> Any:
    def kept(found: dict[str, Any]) -> dict[str, Any]:
        return {key: each for key, each in found.items() if key != "default"}

    return json.loads(_without_version(text), object_hook=kept, parse_float=_single)


def _single(text: str) -> float:
    return single(float(text))


def _singles(name: str, text: str) -> Any:
    if name in ("text", "header") or '"string"' in text:
        return re.sub(r"-?\d+\.\d+(E-?\d+)?", lambda found: str(_single(found[0])), text)
    return json.loads(text, parse_float=_single)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the counts."""
    oracle = Oracle("connect_values", ValuesJava, question, judge, REASONS, GOLDEN_MAX)
    return compare(oracle, arguments, doc=__doc__, questions=20_000)


if __name__ == "__main__":
    sys.exit(main())
