"""Renumbering: fields of Protobuf that have kept their names and changed their numbers.

Bytes name a field by its number. So a field that is inserted in the middle of a class, whose fields
are numbered by position, takes the number of the next one, and its readers read the next one's
values under its name. Where the kinds are alike, no registry sees that.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema


def renumbered_fields(old: ProtobufSchema, new: ProtobufSchema) -> Iterator[str]:
    """Yield, for each field of a message in both versions that has moved, what it is and was."""
    for name, message in new.messages.items():
        before = old.messages.get(name)
        if before is None:
            continue
        numbers = {field.name: number for number, field in before.fields.items()}
        for number, field in message.fields.items():
            was = numbers.get(field.name, number)
            if was != number:
                where = f"field `{field.name}` of {name.lstrip('.')}"
                yield f"{where} has number {number}, and had {was}"
