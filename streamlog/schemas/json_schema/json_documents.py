"""Where a `$ref` leads: documents by URI, the anchors in them, and JSON pointers.

Rule: nothing is fetched. A URI leads to the schema itself, to one of its references, to a schema
inside of them that has an id, or nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.errors import InvalidSchema
from streamlog.schemas.json_text import JsonValue, shown

_URI = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(\?[^#]*)?")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_DATA = frozenset(("enum", "const", "default", "examples", "example"))
"""Keywords whose values are no schemas."""
METASCHEMA = re.compile(r"https?://json-schema\.org/(draft-0[3-7]|draft/20[12][0-9]-[01][0-9])/.*")


def join_uri(base: str, reference: str) -> str:
    """Return a URI reference, without its fragment, as seen from a base (RFC 3986, 5.2)."""
    reference = reference.partition("#")[0]
    if not reference:
        return base
    target, origin = _URI.match(reference), _URI.match(base)
    if target is None or origin is None or target[1]:
        return reference
    scheme = f"{origin[1]}:" if origin[1] else ""
    if target[2] is not None:
        return scheme + reference
    authority = f"//{origin[2]}" if origin[2] is not None else ""
    path = target[3]
    if not path.startswith("/"):
        folder, slash, _ = origin[3].rpartition("/")
        path = f"{folder}{slash}{path}"
    return scheme + authority + _without_dots(path) + (target[4] or "")


def _without_dots(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            # Not above the root, as the standard has it.
            del parts[max(1, len(parts) - 1) :]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


@dataclass(slots=True)
class JsonDocuments:
    """The documents that a schema may refer to."""

    by_uri: dict[str, JsonValue] = field(default_factory=dict)
    """Documents and schemas with an id, by URI without a fragment."""
    anchors: dict[str, tuple[JsonValue, str]] = field(default_factory=dict)
    """Schemas with an anchor, by URI with the anchor as its fragment, and their base."""

    def add(self, uri: str, document: JsonValue) -> str:
        """Add a document with all schemas of it that have an id; its base URI."""
        base = join_uri(uri, _id_of(document))
        for each in (uri, base):
            self.by_uri.setdefault(each, document)
        # By hand: the depth of the text is bounded for the decoder, not for this.
        waiting = [(document, base)]
        while waiting:
            found, around = waiting.pop()
            if isinstance(found, list):
                waiting += [(each, around) for each in found]
            elif isinstance(found, dict):
                inner = self._add_ids(found, around)
                waiting += [(each, inner) for key, each in found.items() if key not in _DATA]
        return base

    def _add_ids(self, found: Mapping[str, JsonValue], around: str) -> str:
        own = _id_of(found)
        base = join_uri(around, own)
        if own.partition("#")[0]:
            self.by_uri.setdefault(base, found)
        for anchor in (own.partition("#")[2], found.get("$anchor")):
            if isinstance(anchor, str) and anchor:
                self.anchors.setdefault(f"{base}#{anchor}", (found, base))
        return base

    def find(self, base: str, reference: str) -> tuple[JsonValue, str]:
        """Return what a `$ref` refers to, and the base URI there.

        Raises:
            InvalidSchema: nothing is there.
        """
        uri, fragment = join_uri(base, reference), reference.partition("#")[2]
        if f"{uri}#{fragment}" in self.anchors:
            return self.anchors[f"{uri}#{fragment}"]
        if uri not in self.by_uri:
            if METASCHEMA.fullmatch(uri):
                return True, uri
            raise InvalidSchema(
                f"$ref refers to {shown(reference)}, which is not in the schema and not one of its "
                "references"
            )
        return self._pointed(self.by_uri[uri], uri, fragment, reference)

    def _pointed(
        self, found: JsonValue, base: str, fragment: str, reference: str
    ) -> tuple[JsonValue, str]:
        pointer = _ESCAPE.sub(lambda code: chr(int(code[1], 16)), fragment)
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            # A list is indexed by digits, and by nothing else that int would take.
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
                base = join_uri(base, _id_of(found))
            else:
                raise InvalidSchema(f"$ref refers to {shown(reference)}, where nothing is")
        if pointer and not pointer.startswith("/"):
            raise InvalidSchema(f"$ref refers to the anchor {shown(reference)}, which is not there")
        return found, base


def _id_of(found: JsonValue) -> str:
    if not isinstance(found, dict):
        return ""
    # Draft 4 has no dollar sign.
    own = found.get("$id", found.get("id"))
    return own if isinstance(own, str) else ""
