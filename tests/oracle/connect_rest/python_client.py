"""kafka-connect-py, a client of others, through the life of a connector: at both workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Final

from tests.oracle.connect_rest.answers import Worker, normal
from tests.oracle.connect_rest.requests import NUMBERS, Wait

NAME: Final = "client-py"
CONFIG: Final = {**NUMBERS, "name": NAME}
RUNNING: Final = Wait(NAME, "RUNNING", 2)
Call = tuple[str, Callable[[], Any]]


def client_answers(url: str) -> list[tuple[str, Any]]:
    """Return what each call of the client answers, without what belongs to its worker."""
    library: Any = import_module("kafka_connect")
    client: Any = library.KafkaConnect(url, logger=logging.getLogger("kafka-connect-py"))
    errors: Any = import_module("requests.exceptions")
    worker, found = Worker(url), []
    for step in _life(client):
        if isinstance(step, Wait):
            list(worker.run([step]))
            continue
        name, call = step
        try:
            answer = normal(call())
        except errors.HTTPError as error:
            answer = f"HTTP {error.response.status_code}"
        found.append((name, answer))
    return found


def _life(client: Any) -> Iterator[Wait | Call]:
    def named(name: str, *arguments: Any, **options: Any) -> Call:
        return name, partial(getattr(client, name), *arguments, **options)

    yield named("get_cluster_info")
    yield named("get_connector", NAME)
    yield named("create_connector", {"name": NAME, "config": CONFIG})
    yield RUNNING
    yield named("create_connector", {"name": NAME, "config": CONFIG})
    yield named("list_connectors", pattern=NAME)
    yield named("list_connectors", expand="status", pattern=NAME, state="RUNNING")
    yield named("get_connector_config", NAME)
    yield named("get_connector_status", NAME)
    yield named("get_connector_task_status", NAME, 1)
    yield named("get_connector_task_status", NAME, 7)
    yield named("pause_connector", NAME)
    yield Wait(NAME, "PAUSED", 2)
    yield named("list_connectors", expand="status", pattern=NAME, state="PAUSED")
    yield named("resume_all_connectors", pattern=NAME)
    yield RUNNING
    yield named("restart_connector_task", NAME, 0)
    yield RUNNING
    yield named("update_connector", NAME, {**CONFIG, "tasks.max": "1"})
    yield Wait(NAME, "RUNNING", 1)
    yield named("get_connector", NAME)
    yield named("reset_connector_topics", NAME)
    yield named("stop_connector", NAME)
    yield Wait(NAME, "STOPPED", 0)
    yield named("get_connector_status", NAME)
    yield named("validate_connector_config", "Numbers", {**CONFIG, "count": "many"})
    yield named("delete_connector", NAME)
    yield Wait(NAME, "GONE", None)
    yield named("delete_connector", NAME)
