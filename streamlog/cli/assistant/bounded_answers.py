"""Bounded answers: what a tool takes, checked by its type, and its answer as JSON within a bound.

Rule of the module: no I/O; an answer that is too long loses rows, and says how many. Records may
hold characters that a reader does not see and a language model reads: the answer has their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from streamlog.errors import UsageError

A = TypeVar("A", bound=msgspec.Struct)
Answer: TypeAlias = Mapping[str, object]

ANSWER_MAX: Final = 48_000
"""Characters of one answer: about 12,000 tokens, which clients take without a warning."""
OMITTED: Final = "omitted"
"""The rows that an answer leaves out."""
NEXT: Final = "next"
"""Where the rows behind those of an answer begin."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what tools take."""


def schema_of(takes: type[msgspec.Struct]) -> dict[str, object]:
    """Return the JSON schema of what a tool takes."""
    (_,), defined = msgspec.json.schema_components((takes,))
    found: dict[str, object] = dict(defined[takes.__name__])
    # Its title and text are those of a class; the tool has its own.
    return {key: value for key, value in found.items() if key not in {"title", "description"}}


def arguments_of(takes: type[A], given: Mapping[str, object]) -> A:
    """Return what a client gave, checked.

    Raises:
        UsageError: it is not what the tool takes.
    """
    try:
        return msgspec.convert(given, takes)
    except msgspec.ValidationError as error:
        raise UsageError(f"wrong arguments: {error}") from None


def listed(name: str, rows: Sequence[object], limit: int) -> dict[str, object]:
    """Return an answer with the first rows under a name, and how many it leaves out."""
    left = len(rows) - limit
    return {name: [*rows[:limit]], **({OMITTED: left} if left > 0 else {})}


def bounded(answer: Answer, most: int = ANSWER_MAX) -> str:
    """Return an answer as JSON of at most `most` characters, without rows that have no room.

    Raises:
        UsageError: it is too long without any row.
    """
    kept: dict[str, object] = dict(answer)
    while len(text := _json(kept)) > most:
        rows = {name: each for name, each in kept.items() if isinstance(each, list) and each}
        if not rows:
            raise UsageError(f"the answer has more than {most} characters: ask for less")
        longest = max(rows, key=lambda name: len(_json(rows[name])))
        # Half of them, and not one after another: each try writes all that is left as JSON.
        first = rows[longest][: len(rows[longest]) // 2]
        omitted = kept.get(OMITTED, 0)
        already = omitted if isinstance(omitted, int) else 0
        kept |= {longest: first, OMITTED: already + len(rows[longest]) - len(first)}
        # It would lead past the rows that are left out here.
        kept.pop(NEXT, None)
    return text


def _json(value: object) -> str:
    # msgspec writes what is no number of JSON, such as "never", as null.
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
