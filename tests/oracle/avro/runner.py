"""AvroJava: pairs of schemas, read and compared by Apache Avro.

One process of Java runs pair after pair (`PairRunner.java`). Its libraries come from Maven.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from conformance.kafka import fetched
from tests.oracle.java import JavaProgram

VERSION: Final = "1.12.0"
SOURCE: Final = Path(__file__).parent / "PairRunner.java"


class AvroJava(JavaProgram):
    """Compares pairs one after another.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        libraries = fetched(f"avro-{VERSION}", ("avro",), VERSION, group="org.apache.avro")
        super().__init__(SOURCE, libraries)

    def answer(self, reader: str, writer: str) -> dict[str, Any]:
        """Return what Avro says of two schemas, given as texts.

        `reader` and `writer` are their texts as Avro writes them, None for one that it refuses;
        `found` lists kinds, paths and details; `error` is there if the comparison ends with one.
        """
        return self.ask({"reader": reader, "writer": writer})
