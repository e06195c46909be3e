"""Connector release: what a source keeps outside is removed, such as a replication slot.

An operator asks for it together with the deletion of a connector. The connector is stopped first,
and deleted only behind a release that has succeeded, so a failed one can be repeated.
"""

from __future__ import annotations

from typing import Final

from streamlog.connect import Source
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.herding.herder_requests import (
    BAD_REQUEST,
    CONFLICT,
    NOT_FOUND,
    ConnectRefusal,
    SetTarget,
)
from streamlog.connect.herding.lifecycle import TargetState
from streamlog.connect_service.rest_port import RestPort
from streamlog.connect_tasks.contexts import ConnectorContext

END_MS: Final = 30_000
"""How long the tasks of a stopped connector may take to end."""


async def comes_to_rest(service: RestPort, name: str) -> bool:
    """Return whether no worker commits for a connector any more; waits for a round if need be.

    Raises:
        ConnectRefusal: 409, the round has not come within `END_MS`.
    """
    herder, deadline_ms = service.herder, service.task_clock.now_ms() + END_MS
    while not herder.is_at_rest(name):
        if herder.configs.target(name) is not TargetState.STOPPED:
            return False
        if service.task_clock.now_ms() > deadline_ms:
            raise ConnectRefusal(
                CONFLICT, f"The tasks of connector {name} have not ended yet; try again later"
            )
        await service.group.moved_on()
    return True


async def release_outside(service: RestPort, name: str) -> str:
    """Stop a connector, let its source remove what it keeps outside, and return what that was.

    Raises:
        ConnectRefusal: there is no such connector, or it keeps nothing outside.
        StreamlogError: the outside can't be reached, or refuses.
    """
    if name not in service.herder.configs.connectors:
        raise ConnectRefusal(NOT_FOUND, f"Connector {name} not found")
    connector = service.declare(name, service.herder.configs.connectors[name])
    if (
        not isinstance(connector, SourceConnector)
        or type(connector.source).release is Source.release
    ):
        raise ConnectRefusal(
            BAD_REQUEST,
            f"Connector {name} keeps nothing outside that could be released; delete it without"
            " release=true (--drop-slot)",
        )
    await service.ask(SetTarget(name, TargetState.STOPPED))
    if not await comes_to_rest(service, name):
        raise ConnectRefusal(CONFLICT, f"Connector {name} was started again meanwhile")
    context = ConnectorContext(name, 0, service.task_clock)
    try:
        return await connector.source.release(context)
    finally:
        context.close()
