"""Written headers: the headers that a program gives to its records, checked and as bytes.

Rule: what a program writes is never mistaken for what streamlog writes: the names of provenance and
of schemas are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamlog.errors import UsageError
from streamlog.record import GivenHeaders, Headers
from streamlog.serdes.registered.framing import SCHEMA_HEADERS

RESERVED: Final = "streamlog."
"""The names of headers in repartition topics begin with this (`provenance`)."""
HEADERS_MAX: Final = 1_000
"""The most headers of one record: each of them is read with every record."""


def written_headers(given: GivenHeaders) -> Headers:
    """Return headers as they are written: text as UTF-8, in the order that they have.

    Args:
        given: a mapping of names to bytes, text or None; or pairs of them, whose names may repeat.

    Raises:
        UsageError: a name or a value has another type, or a name is reserved.
    """
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        found = tuple(_header(name, value) for name, value in pairs)
    except (TypeError, ValueError) as error:
        # Such as None, a function without `return`, or a text, whose characters are no pairs.
        raise UsageError(
            f"headers are a dict of names to bytes, or pairs of both: got {type(given).__name__}"
        ) from error
    if len(found) > HEADERS_MAX:
        raise UsageError(f"a record has {len(found)} headers: the limit is {HEADERS_MAX}")
    return found


def _header(name: object, value: object) -> tuple[str, bytes | None]:
    if not isinstance(name, str):
        raise UsageError(f"the name of a header is a text: got {type(name).__name__}")
    if name.startswith(RESERVED) or name in SCHEMA_HEADERS:
        raise UsageError(f"header {name!r} is reserved: choose another name")
    if isinstance(value, str):
        return name, value.encode()
    if value is not None and not isinstance(value, bytes):
        raise UsageError(f"header {name!r} is bytes, a text or None: got {type(value).__name__}")
    return name, value
