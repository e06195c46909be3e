"""Topic schema: what a topic declares about the schema of its keys or values.

Rule: plain data and names; nothing here reads a type or asks a registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from streamlog.errors import ConfigError, InvalidSchema
from streamlog.schemas import Schema, SchemaType
from streamlog.schemas.parsing import order_references

SchemaFormat: TypeAlias = Literal["avro", "json", "protobuf"]
SchemaPolicy: TypeAlias = Literal["register", "check", "off"]
"""What a worker does with its schemas before it starts.

"register" registers schemas that the registry does not have, "check" refuses to start without them,
and both refuse a schema that others can't be read with. "off" asks for the ids alone.
"""
SubjectNames: TypeAlias = Literal["topic", "record", "topic_record"]
FORMATS: Final[dict[str, SchemaType]] = {
    "avro": SchemaType.AVRO,
    "json": SchemaType.JSON,
    "protobuf": SchemaType.PROTOBUF,
}
POLICIES: Final = ("register", "check", "off")
SUBJECT_NAMES: Final = ("topic", "record", "topic_record")
ID_PLACES: Final = ("prefix", "header")


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A schema of a topic: `app.topic(..., schema=TopicSchema("avro", ids="header"))`.

    `schema="avro"` is `TopicSchema("avro")`.
    """

    format: SchemaFormat
    subjects: SubjectNames = "topic"
    """The name of the subject: "topic" is `<topic>-value`, "record" the full name of the record,
    "topic_record" `<topic>-<record>`. With the last two, a topic may have several types."""
    ids: Literal["prefix", "header"] = "prefix"
    """Where records name their schema: before the value, by its id, or in a header, by its GUID.
    Both are read."""
    schema: Schema | None = None
    """A schema that was written by hand, instead of the one that the type derives."""
    referenced: Mapping[str, Schema] = field(default_factory=dict, hash=False)
    """The schemas that `schema` refers to, directly or through others, by reference name. A class
    of Protobuf messages brings them along."""
    message: str = ""
    """The full name of the message that values of `dict` are, in a Protobuf schema that was written
    by hand; by default its first one."""

    def __post_init__(self) -> None:
        _check("schema", self.format, tuple(FORMATS))
        _check("subjects", self.subjects, SUBJECT_NAMES)
        _check("ids", self.ids, ID_PLACES)
        if self.schema is not None and self.schema.type is not self.type:
            raise ConfigError(
                f"the schema is {self.schema.type}, but the topic declares {self.format}"
            )
        if self.schema is not None and self.referenced:
            try:
                ordered = order_references(self.schema, self.referenced)
            except InvalidSchema as error:
                raise ConfigError(f"the schema and `referenced` do not fit: {error}") from error
            # In this order, libraries meet no name before its definition.
            object.__setattr__(self, "referenced", ordered)

    def require_references(self) -> None:
        """Check that the schemas are given that `schema` refers to.

        Raises:
            ConfigError: one is missing.
        """
        if self.schema is not None and self.schema.references and not self.referenced:
            name = self.schema.references[0].name
            raise ConfigError(
                f"the schema refers to {name}: give TopicSchema(..., referenced={{{name!r}: "
                "Schema(...)})"
            )

    @property
    def type(self) -> SchemaType:
        """The format, by its name in a registry."""
        return FORMATS[self.format]


def topic_schema_of(given: SchemaFormat | TopicSchema | None) -> TopicSchema | None:
    """Return the schema that a topic declares.

    Raises:
        ConfigError: the format is unknown.
    """
    if given is None or isinstance(given, TopicSchema):
        return given
    return TopicSchema(given)


def check_policy(policy: SchemaPolicy) -> SchemaPolicy:
    """Return the policy.

    Raises:
        ConfigError: there is no such policy.
    """
    _check("schema_policy", policy, POLICIES)
    return policy


def subject_name(
    names: SubjectNames, topic: str, field: Literal["key", "value"], record_name: str | None
) -> str:
    """Return the subject of a topic's keys or values (Confluent's subject name strategies).

    Raises:
        ConfigError: the strategy needs the name of a record, and the schema has none.
    """
    if names == "topic":
        return f"{topic}-{field}"
    if record_name is None:
        raise ConfigError(
            f"topic {topic!r}: subjects={names!r} needs the name of a record, and the schema of "
            f"its {field}s has none: use subjects='topic'"
        )
    return record_name if names == "record" else f"{topic}-{record_name}"


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(map(repr, known))}")
