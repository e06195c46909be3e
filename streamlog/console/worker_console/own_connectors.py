"""OwnConnectors: asks the connectors of the app in this process, as their REST API would.

Not over HTTP: with users, the API needs a password, and the console knows none. Whoever sees the
console has shown one, and `request_guard` lets operators alone change something.
"""

from __future__ import annotations

from typing import Final

import msgspec

from streamlog.connect.herding.herder_requests import ConnectRefusal
from streamlog.connect_service.peer_forwarding import forwarding_of
from streamlog.connect_service.rest_answers import parse_call
from streamlog.connect_service.rest_port import RestPort
from streamlog.console.connect_desk import refused
from streamlog.worker.worker_sites import WorkerView

ERRORS_FROM: Final = 400


class OwnConnectors:
    """The connectors of one app; `ConnectService` of its console."""

    def __init__(self, service: RestPort, view: WorkerView) -> None:
        # A change belongs to the worker that leads the group, which may be another one.
        self._rest = forwarding_of(service, view.start.log.cluster_id, tls=view.server.peer_tls)

    async def ask(self, method: str, path: str) -> bytes:
        """Return the answer to a request.

        Raises:
            UsageError: the request was refused.
        """
        try:
            status, body = await self._rest.answer(parse_call(method, f"/{path}", b"", {}))
        except ConnectRefusal as error:
            raise refused(error.status, str(error)) from error
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        if status >= ERRORS_FROM:
            raise refused(status, data.decode(errors="replace"))
        return data

    def close(self) -> None:
        """Do nothing: the worker closes its connectors."""
