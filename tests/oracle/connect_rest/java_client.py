"""kafka-connect-client, the Java client that AKHQ has, with all its calls: at both workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from conformance.kafka import fetched
from tests.oracle.connect_rest.answers import Worker, normal
from tests.oracle.connect_rest.requests import BROKEN, NUMBERS, Wait
from tests.oracle.java import JavaProgram

VERSION: Final = "4.0.5"
SOURCE: Final = Path(__file__).parent / "ClientCalls.java"
NAME: Final = "client-java"
FAILING: Final = "client-java-failing"
CONFIG: Final = {**NUMBERS, "name": NAME}
RUNNING: Final = Wait(NAME, "RUNNING", 2)
Call = dict[str, Any]


class ConnectClientJava(JavaProgram):
    """The client in a process.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        artifact = "kafka-connect-client"
        group = "org.sourcelab"
        super().__init__(SOURCE, fetched(f"{artifact}-{VERSION}", [artifact], VERSION, group=group))


def java_client_answers(url: str) -> list[tuple[str, Any]]:
    """Return what each call of the client returns or raises, without what belongs to its worker.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """
    worker, found = Worker(url), []
    with ConnectClientJava() as client:
        client.ask({"call": "open", "name": url})
        for step in _life():
            if isinstance(step, Wait):
                list(worker.run([step]))
                continue
            answer = client.ask(step)
            found.append((step["call"], normal(answer.get("value", answer))))
    return found


def _call(name: str, connector: str = NAME, **others: Any) -> Call:
    return {"call": name, "name": connector, **others}


def _life() -> Iterator[Wait | Call]:
    """Yield the calls: about nothing, about a connector that runs, and about its changes."""
    yield from map(_call, ("getConnectServerVersion", "getConnectorPlugins", "getConnectors"))
    yield from map(_call, ("getConnector", "getConnectorStatus", "pauseConnector"))
    yield _call("addConnector", config=CONFIG)
    yield RUNNING
    yield _call("addConnector", config=CONFIG)
    yield from map(_call, ("getConnectors", "getConnectorsWithExpandedStatus"))
    yield from map(_call, ("getConnectorsWithExpandedInfo", "getConnectorsWithAllExpandedMetadata"))
    yield from map(_call, ("getConnector", "getConnectorConfig", "getConnectorStatus"))
    yield _call("getConnectorTasks")
    yield _call("getConnectorTaskStatus", task=1)
    yield _call("getConnectorTaskStatus", task=7)
    yield from _changes()
    yield from _failure()
    yield _call("stopConnector")
    yield Wait(NAME, "STOPPED", 0)
    yield _call("getConnectorStatus")
    yield _call("validateConnectorPluginConfig", "Numbers", config={**CONFIG, "count": "many"})
    yield _call("validateConnectorPluginConfig", "Numbers", config=CONFIG)
    yield _call("addConnector", "client-java-empty", config={})
    yield _call("deleteConnector")
    yield Wait(NAME, "GONE")
    yield _call("deleteConnector")


def _changes() -> Iterator[Wait | Call]:
    yield _call("pauseConnector")
    yield Wait(NAME, "PAUSED", 2)
    yield _call("getConnectorStatus")
    yield _call("resumeConnector")
    yield RUNNING
    yield _call("restartConnector")
    yield RUNNING
    yield _call("restartConnectorTask", task=0)
    yield RUNNING
    yield _call("updateConnectorConfig", config={**CONFIG, "tasks.max": "1"})
    yield Wait(NAME, "RUNNING", 1)
    yield from map(_call, ("getConnector", "getConnectorTopics", "resetConnectorTopics"))


def _failure() -> Iterator[Wait | Call]:
    yield _call("addConnector", FAILING, config={**BROKEN, "name": FAILING})
    yield Wait(FAILING, "FAILED", 2)
    yield _call("restartConnectorTasks", FAILING)
    yield Wait(FAILING, "FAILED", 2)
    yield _call("getConnectorStatus", FAILING)
    yield _call("deleteConnector", FAILING)
    yield Wait(FAILING, "GONE")
