"""The levels of compatibility, and one reason why two schemas are not compatible.

Rule: names of levels and kinds, and the sentences, are those of Confluent's registry, whose clients
read them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class CompatibilityLevel(StrEnum):
    """Who has to be able to read what, when a schema changes."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    """The new schema reads what the latest one has written."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    """The new schema reads what any earlier one has written."""
    FORWARD = "FORWARD"
    """The latest schema reads what the new one writes."""
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    """Every earlier schema reads what the new one writes."""
    FULL = "FULL"
    """Both, for the latest schema."""
    FULL_TRANSITIVE = "FULL_TRANSITIVE"
    """Both, for every earlier schema."""

    @property
    def is_backward(self) -> bool:
        """Whether the new schema has to read what an earlier one has written."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        """Whether an earlier schema has to read what the new one writes."""
        return self.value.startswith(("FORWARD", "FULL"))

    @property
    def is_transitive(self) -> bool:
        """Whether all earlier schemas count, not only the latest."""
        return self.value.endswith("_TRANSITIVE")


class Difference(msgspec.Struct, frozen=True):
    """A difference between a reader's and a writer's schema, without a sentence."""

    kind: str
    path: str
    detail: str = ""


class Incompatibility(msgspec.Struct, frozen=True):
    """One reason why a reader's schema can't read what a writer's schema writes."""

    kind: str
    """Confluent's name for it, such as READER_FIELD_MISSING_DEFAULT_VALUE."""
    path: str
    """Where in the schema, as Confluent gives it."""
    message: str
    """A sentence that calls the two schemas "new" and "old"."""
    detail: str = ""
    """What Avro says of it: the name of the field, the symbols, the types."""
    earlier: int = 0
    """The index of the earlier schema that it concerns, among those that were passed."""

    @property
    def confluent_text(self) -> str:
        """The text that Confluent's registry answers with `verbose=true`."""
        if self.detail:
            return (
                f"{{errorType:'{self.kind}', description:'{self.message}', "
                f"additionalInfo:'{self.detail}'}}"
            )
        return f'{{errorType:"{self.kind}", description:"{self.message}"}}'

    def __str__(self) -> str:
        return self.message
