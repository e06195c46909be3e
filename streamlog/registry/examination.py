"""Examination: parses schemas and compares them, apart from the state.

A decision first gathers everything that it needs from the state, as plain texts; the examination of
a large schema then runs in a thread, while the broker serves others. Parsed schemas are cached, the
most recently used ones: an earlier version is compared with every later one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from streamlog.errors import InvalidSchema
from streamlog.registry.refusals import invalid_schema
from streamlog.registry.registry_state import RegistryState, SchemaContent
from streamlog.registry.subject_names import relative_name
from streamlog.schemas import AvroSchema, ProtobufSchema
from streamlog.schemas.compatibility import CompatibilityLevel, Incompatibility
from streamlog.schemas.compatibility.checks import check
from streamlog.schemas.json_text import dump_json
from streamlog.schemas.parsing import parse_schema
from streamlog.schemas.schema import DEFAULT_LIMITS, ParsedSchema, Schema, SchemaLimits

PARSED_MAX: Final = 1_000
"""Parsed schemas in the cache."""
PARSED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The sizes of their texts, all together."""
SERIALIZED: Final = "serialized"
"""The format of a Protobuf schema as a FileDescriptorProto in base64, for `confluent_kafka`."""
RESOLVED: Final = "resolved"
"""The format of an Avro schema that needs no references."""
LATEST: Final = -1
"""The version of a reference that means the latest."""


class ResolvedSchema(msgspec.Struct, frozen=True):
    """A schema with everything that it refers to, by reference name."""

    schema: Schema
    referenced: tuple[tuple[str, Schema], ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of all texts."""
        return len(self.schema.text) + sum(len(each.text) for _, each in self.referenced)


def resolve(
    state: RegistryState,
    subject: str,
    schema: Schema,
    *,
    is_new: bool,
    limits: SchemaLimits = DEFAULT_LIMITS,
) -> ResolvedSchema:
    """Return a schema with those that it refers to, directly or through others.

    A new schema can't refer to a deleted version; one that is registered may have done so before.

    Raises:
        RegistryRefusal: 42201, a reference is not registered, or there are too many.
    """
    found: dict[str, Schema] = {}
    # A list, not recursion: a chain of references may be as long as the limit. A circle, which only
    # an import could make, ends too: every name is followed once, and the parser refuses it.
    waiting = [(subject, schema)]
    while waiting:
        parent, current = waiting.pop()
        for reference in current.references:
            if reference.name in found:
                continue
            name = relative_name(reference.subject, parent)
            version = (
                state.latest(name)
                if reference.version == LATEST
                else state.version(name, reference.version, deleted=not is_new)
            )
            if version is None:
                raise invalid_schema(
                    f"it refers to '{reference.name}', version {reference.version} of subject"
                    f" '{name}', which is not registered"
                )
            if len(found) >= limits.references:
                raise invalid_schema(
                    f"it refers to more than {limits.references} schemas, the limit"
                )
            found[reference.name] = version.content.schema
            waiting.append((version.subject, version.content.schema))
    return ResolvedSchema(schema, tuple(sorted(found.items())))


class Examiner:
    """Parses and compares schemas, with a cache. Used by one thread at a time."""

    def __init__(self, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._parsed: OrderedDict[tuple[ResolvedSchema, bool], ParsedSchema] = OrderedDict()
        self._cached_bytes = 0

    def content(self, resolved: ResolvedSchema, *, is_new: bool, normalize: bool) -> SchemaContent:
        """Return a schema in the form that is stored, without metadata.

        Raises:
            RegistryRefusal: 42201, it is no schema of its type, or exceeds a limit.
        """
        parsed = self.parse(resolved, is_new=is_new)
        text = parsed.normalized if normalize else parsed.canonical
        references = parsed.references
        if normalize:
            # Their order and repetitions mean nothing, so normalized schemas don't differ by them.
            references = tuple(sorted(set(references)))
        return SchemaContent(Schema(resolved.schema.type, text, references))

    def parse(self, resolved: ResolvedSchema, *, is_new: bool) -> ParsedSchema:
        """Return a parsed schema, from the cache if it is there.

        Raises:
            RegistryRefusal: as for `content`.
        """
        key = resolved, is_new
        known = self._parsed.get(key)
        if known is not None:
            self._parsed.move_to_end(key)
            return known
        try:
            parsed = parse_schema(
                resolved.schema, dict(resolved.referenced), limits=self._limits, is_new=is_new
            )
        except InvalidSchema as error:
            raise invalid_schema(str(error)) from None
        self._parsed[key] = parsed
        self._cached_bytes += resolved.size_bytes
        # By size too: a thousand schemas of a megabyte would fill a broker. The newest one stays,
        # however large, because it is compared next.
        while len(self._parsed) > PARSED_MAX or (
            self._cached_bytes > PARSED_BYTES_MAX and len(self._parsed) > 1
        ):
            (oldest, _), _ = self._parsed.popitem(last=False)
            self._cached_bytes -= oldest.size_bytes
        return parsed

    def compare(
        self, new: ResolvedSchema, earlier: Iterable[ResolvedSchema], level: CompatibilityLevel
    ) -> list[Incompatibility]:
        """Return why a schema is not compatible with earlier ones, given from the oldest on.

        Raises:
            RegistryRefusal: 42201, the new one is no schema of its type.
        """
        parsed = self.parse(new, is_new=True)
        return check(parsed, [self.parse(each, is_new=False) for each in earlier], level)

    def formatted(self, resolved: ResolvedSchema, name: str) -> str:
        """Return the text of a registered schema in another format.

        Raises:
            RegistryRefusal: 42201, it is no schema of its type.
        """
        parsed = self.parse(resolved, is_new=False)
        match parsed:
            case ProtobufSchema() if name == SERIALIZED:
                return parsed.serialized
            case AvroSchema() if name == RESOLVED:
                return dump_json(parsed.resolved)
            case _:
                return resolved.schema.text
