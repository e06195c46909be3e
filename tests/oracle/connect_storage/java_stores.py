"""JavaStores: Kafka Connect's three backing stores in a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.kafka import fetched
from tests.oracle.connect_rest.apache_worker import VERSION
from tests.oracle.java import JavaProgram

SOURCE: Final = Path(__file__).parent / "BackingStores.java"
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"


class JavaStores(JavaProgram):
    """The stores; `open` opens them over three topics.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        artifacts = ("connect-transforms", "connect-json", "connect-runtime")
        super().__init__(SOURCE, fetched(f"connect-{VERSION}", artifacts, VERSION))

    def open(self, settings: Mapping[str, str]) -> None:
        """Open the stores, and read what is there; those that were open are closed."""
        self.do({"call": "open", "settings": settings})

    def do(self, asked: Mapping[str, Any]) -> Any:
        """Make a call; returns its value.

        Raises:
            RuntimeError: a store has raised an error.
        """
        answer = self.ask(asked)
        if "raised" in answer:
            raise RuntimeError(f"{asked}: {answer['raised']}")
        return answer["value"]

    def state(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what the stores hold; of these names, statuses, topics and offsets as well."""
        state: dict[str, Any] = self.do({"call": "read", "names": names})
        return state


def store_settings(
    bootstrap: str, topics: Mapping[str, str], *, group: str = "stores"
) -> dict[str, str]:
    """Return the settings of a distributed worker; `topics` are those by their kind."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "key.converter": JSON,
        "value.converter": JSON,
        "exactly.once.source.support": "enabled",
        "offset.storage.partitions": "3",
        "status.storage.partitions": "2",
        **{f"{kind}.storage.topic": topic for kind, topic in topics.items()},
        **{f"{kind}.storage.replication.factor": "1" for kind in topics},
    }
