"""KafkaStreams: cases in the vocabulary of `tests/golden`, run by Kafka Streams' test driver.

One process of Java runs case after case (`CaseRunner.java`). Its libraries come from Maven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.kafka import fetched
from tests.golden.compare import Case, Row
from tests.oracle.java import JavaProgram

VERSION: Final = "4.4.0"
SOURCE: Final = Path(__file__).parent / "CaseRunner.java"


class Refused(Exception):
    """Kafka Streams refuses the topology or fails on the case; the message is its own."""


class KafkaStreams(JavaProgram):
    """Runs cases one after another.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        libraries = fetched(f"kafka-streams-{VERSION}", ("kafka-streams-test-utils",), VERSION)
        super().__init__(SOURCE, libraries)

    def rows(self, case: Case) -> list[Row]:
        """Return the rows that Kafka Streams writes.

        Raises:
            Refused: Kafka Streams returns an error.
        """
        answer = self.ask(case)
        if "error" in answer:
            raise Refused(answer["error"])
        return _rows(answer["rows"])


def _rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        Row(
            each["topic"],
            each["key"],
            None if each["window"] is None else (each["window"][0], each["window"][1]),
            each["value"],
            each["ts"],
            each["after"],
        )
        for each in found
    ]
