"""NaN and infinities inside a value, which JSON has no numbers for (RFC 8259, section 6).

Encoders write null in their place, and the same type can't read that. Rule of the file: a value is
walked only if something in it may be such a number, as this runs for each record whose JSON has a
null in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

import msgspec

from streamlog.errors import SerdeError

ADVICE = (
    "JSON has no such number: leave the record out or replace the number before, or declare a "
    "field that may be missing as `float | None` and write None"
)

_encode = msgspec.msgpack.Encoder(enc_hook=lambda _: None).encode
_PACKED_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""How NaN and infinities begin as MessagePack; other bytes may look the same."""


def refuse_not_finite(name: str, value: object, plain: object = None) -> None:
    """Refuse a value with NaN or an infinity in it, and name the field.

    Args:
        name: the type of the value, for the message.
        value: what is to be written.
        plain: the same as dicts and lists; by default msgspec makes them.

    Raises:
        SerdeError: a number in it is not finite.
    """
    if plain is None:
        if not _may_have(value):
            return
        plain = msgspec.to_builtins(value, enc_hook=str)
    found = next(_not_finite("$", plain), None)
    if found is not None:
        path, number = found
        raise SerdeError(f"{name} can't be written as JSON: `{path}` is {number}. {ADVICE}")


def shown_json(value: object, enc_hook: Callable[[Any], Any]) -> bytes:
    """A value as JSON for people, with "nan", "inf" and "-inf" in place of such numbers.

    Args:
        value: what is shown.
        enc_hook: makes something plain of what msgspec does not know.
    """
    data = msgspec.json.encode(value, enc_hook=enc_hook)
    if b"null" not in data:
        return data
    plain = _shown(msgspec.to_builtins(value, enc_hook=enc_hook))
    return msgspec.json.encode(plain)


def _shown(value: object) -> object:
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, dict):
        return {_shown(key): _shown(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(part) for part in value]
    return value


def _may_have(value: object) -> bool:
    try:
        return _PACKED_NUMBER.search(_encode(value)) is not None
    except OverflowError:
        return True  # A whole number beyond 64 bits, which MessagePack does not have.


def _not_finite(path: str, plain: object) -> Iterator[tuple[str, float]]:
    if isinstance(plain, float):
        if not isfinite(plain):
            yield path, plain
    elif isinstance(plain, dict):
        for key, part in plain.items():
            yield from _not_finite(f"key of {path}", key)
            yield from _not_finite(f"{path}.{key}", part)
    elif isinstance(plain, list | tuple):
        for at, part in enumerate(plain):
            yield from _not_finite(f"{path}[{at}]", part)
