"""RestRequest: one request of the REST API, from its bytes to the parts that answers need.

Rule: everything from outside is bounded before it is read. A name in a path is percent-encoded and
may contain slashes, so a path is split before it is decoded. `/contexts/:.audit:/...` is another
spelling of names in a context, and is rewritten here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from streamlog.registry.refusals import INVALID_SCHEMA, RegistryRefusal
from streamlog.registry.subject_names import (
    DEFAULT_CONTEXT,
    WILDCARD,
    QualifiedSubject,
    normalize_name,
    qualify,
)

TARGET_BYTES_MAX: Final = 16 * 1024
PARAMETERS_MAX: Final = 100
NESTING_MAX: Final = 100
"""How deep JSON in a body may be nested."""
_CONTEXTS: Final = "contexts"
_WITH_SUBJECT: Final = ("subject", "subjectPrefix")

T = TypeVar("T")


class RestRequest(msgspec.Struct, frozen=True):
    """One request."""

    method: str
    target: str
    """Path and query as they came, for the primary."""
    path: tuple[str, ...]
    """The decoded parts of the path; names of subjects are normalized."""
    parameters: Mapping[str, str]
    body: bytes = b""

    def flag(self, name: str) -> bool:
        """Return a boolean parameter; false if it is absent."""
        return self.parameters.get(name, "").lower() == "true"

    def optional_flag(self, name: str) -> bool | None:
        """Return a boolean parameter; None if it is absent."""
        return self.flag(name) if self.parameters.get(name) else None

    def number(self, name: str, default: int) -> int:
        """Return a whole number.

        Raises:
            RegistryRefusal: 400, it is none.
        """
        text = self.parameters.get(name, "")
        if not text:
            return default
        if not text.removeprefix("-").isdecimal() or len(text) > 19:  # noqa: PLR2004 - the digits of an int64
            raise RegistryRefusal(400, f"{name}={text[:40]!r} is not a whole number")
        return int(text)

    def decode(self, kind: type[T]) -> T:
        """Return the body.

        Raises:
            RegistryRefusal: 400, it is no JSON; 422, it is not JSON of this kind.
        """
        check_nesting(self.body)
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.ValidationError as error:
            raise RegistryRefusal(
                422, f"The body is not what this request takes: {error}"
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RegistryRefusal(400, f"The body is not JSON: {error}") from None
        except RecursionError:
            raise _too_deep() from None


def check_nesting(body: bytes) -> None:
    """Raise RegistryRefusal if JSON is nested deeper than `NESTING_MAX`; strings do not count."""
    if body.count(b"{") + body.count(b"[") <= NESTING_MAX:
        return
    depth = 0
    # Only the outer document: a schema is a string in it, and its parser has a bound of its own.
    for found in _BRACKETS.finditer(body):
        match found[0][:1]:
            case b"{" | b"[":
                depth += 1
                if depth > NESTING_MAX:
                    raise _too_deep()
            case b"}" | b"]":
                depth -= 1


_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""A whole string, so that brackets in it are passed over, or one bracket."""


def _too_deep() -> RegistryRefusal:
    return RegistryRefusal(
        INVALID_SCHEMA, f"The body is nested deeper than {NESTING_MAX} levels, the limit"
    )


def parse_request(method: str, target: str, body: bytes = b"") -> RestRequest:
    """Return a request by its method, target and body.

    Raises:
        RegistryRefusal: 414 or 400, the target is too long, or no UTF-8.
    """
    if len(target) > TARGET_BYTES_MAX:
        raise RegistryRefusal(414, f"The path is longer than {TARGET_BYTES_MAX} bytes")
    raw, _, query = target.partition("?")
    # Strictly: a name with broken UTF-8 would become another name, with replacement characters.
    try:
        path = [unquote(part, errors="strict") for part in raw.split("/") if part]
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX
        )
    except ValueError as error:
        raise RegistryRefusal(400, f"The path or the query can't be decoded: {error}") from None
    parameters = dict(pairs)
    context = DEFAULT_CONTEXT
    if len(path) > 2 and path[0] == _CONTEXTS:  # noqa: PLR2004 - /contexts/NAME/...
        context, path = _context_of(path[1]), path[2:]
        # Without a subject, a request is about the context itself.
        if path in (["config"], ["mode"]):
            path.append(QualifiedSubject(context, "").name)
            parameters.setdefault("defaultToGlobal", "true")
    for name in _WITH_SUBJECT:
        if name in parameters:
            parameters[name] = _in_context(parameters[name], context)
        elif context != DEFAULT_CONTEXT:
            parameters[name] = QualifiedSubject(context, "").name
    return RestRequest(method, target, tuple(_named(path, context)), parameters, body)


# Written with its colons or without, as Confluent's clients do: `:.audit:`, `.audit`, `audit`.
def _context_of(text: str) -> str:
    name = text.strip(":")
    return name if name.startswith(".") else f".{name}"


def _named(path: list[str], context: str) -> list[str]:
    """Return a path whose subject is written in its one way."""
    where = (
        {"subjects": 1, "config": 1, "mode": 1, "compatibility": 2}.get(path[0]) if path else None
    )
    if where is None or len(path) <= where:
        return path
    return [*path[:where], _in_context(path[where], context), *path[where + 1 :]]


def _in_context(name: str, context: str) -> str:
    if name.startswith(WILDCARD):
        return name
    if context == DEFAULT_CONTEXT or qualify(name).context != DEFAULT_CONTEXT:
        return normalize_name(name)
    return QualifiedSubject(context, qualify(name).subject).name
