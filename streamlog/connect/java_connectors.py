"""Java connectors: classes of Kafka Connect's world whose configurations make connectors of ours.

The fields of a `JavaConnector` are the settings of the Java class. It makes a connector of ours of
them, changes records to what the Java class writes, and reads the offsets that the Java class has
left in the offsets topic.

Rule: every setting has its effect, or its description says that it is accepted without one. A value
that would mean less than the Java class promises is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import msgspec

from streamlog.connect.setting_values import check_settings
from streamlog.connect.sink import Sink
from streamlog.connect.source import Source, SourceOffset, SourcePartition
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import AnyRecord

AnyConnector: TypeAlias = Source[Any, Any] | Sink[Any, Any]
LeftOffsets: TypeAlias = Iterable[tuple[SourcePartition, SourceOffset]]
"""Parts and offsets as a Java class names them."""


class JavaConnector(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a Java class, and what they mean here."""

    stands_for: ClassVar[type[Source[Any, Any] | Sink[Any, Any]]]
    """The class of the connector that `connector` makes."""
    named_here: ClassVar[Mapping[str, str]] = {}
    """The Java class's names of our settings, for what our connector's `check` refuses."""

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: two settings contradict each other, or one is out of range.
        """
        check_settings(self.connector())

    def connector(self) -> AnyConnector:
        """Return the connector of ours."""
        raise TypeError(f"{type(self).__name__} has no method connector")

    def adapt(self, record: AnyRecord) -> AnyRecord | None:
        """Return a record as the Java class has it: behind a source, or before a sink.

        None leaves it out.
        """
        return record

    def left_offset(self, part: SourcePartition, left: LeftOffsets) -> SourceOffset | None:
        """Return where a part continues that only the Java class has read; None: at the beginning.

        Args:
            part: a part of ours, without an offset.
            left: all offsets of a connector of this name.

        Raises:
            ConfigError: there is an offset, and a reader of ours can't continue there.
        """
        del part, left
        return None


def last_name(qualified: str) -> str:
    """Return the last part of a dotted name, without quotes: `"shop"."orders"` is `orders`."""
    return qualified.rpartition(".")[2].strip('"`')


def refuse_unless(is_so: bool, setting: str, why: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Refuse a setting.

    Raises:
        ConfigError: the condition does not hold.
    """
    if not is_so:
        raise ConfigError(f"{setting}: {why}")
