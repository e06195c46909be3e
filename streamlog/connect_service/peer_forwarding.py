"""PeerForwarding: requests that another worker has to answer, sent on to it.

Any worker of a service answers questions, as all follow the same topics. What changes something is
the leader's, and the restart of a task belongs to the worker that runs it. Such a request is sent
on, signed with the session key (KIP-507), and its answer is passed back; then this worker reads
what the topics have by now, so that a client sees its own changes here.

Rules: a request is sent on once. While a round is held it waits, up to 30 s. One that may have
arrived is never sent again.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import quote, urlencode

import h11
import msgspec

from streamlog import repeated
from streamlog.connect.herding.herder_requests import (
    BAD_GATEWAY,
    CONFLICT,
    ConnectorSlot,
    ConnectRefusal,
)
from streamlog.connect_service.connector_offsets import ConnectorOffsets
from streamlog.connect_service.rest_answers import Answer, ConnectRest, RestCall, refusal
from streamlog.connect_service.rest_port import RestPort
from streamlog.worker.connect.session_keys import SessionKeys
from streamlog.worker.web.peer_http import PeerCall, call_peer

logger = repeated.logger(__name__)

FORWARD_MS: Final = 30_000
"""How long a request waits for a leader."""
ANSWER_MS: Final = 35_000
"""How long another worker may take to answer: the limit of its own is 30 s."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
CONTENT_TYPE: Final = "application/json"
UNAVAILABLE: Final = 503
_ANSWERED_AT_START: Final = ((), ("health",))
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class PeerForwarding:
    """Answers requests here, or lets the worker answer whose matter they are."""

    def __init__(
        self, service: RestPort, rest: ConnectRest, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """Create what answers; `tls` encrypts requests to other workers."""
        self._service, self._rest, self._tls = service, rest, tls
        self._keys: SessionKeys = service.keys

    async def answer(self, call: RestCall) -> Answer:
        """Return status and body of an answer; an error is one as well."""
        try:
            if call.path not in _ANSWERED_AT_START:
                await self._until_ready()
            endpoint = await self._other_worker(call) if _is_change(call) else None
            if endpoint is None:
                return await self._rest.answer(call)
            answer = await self._send(endpoint, call)
        except ConnectRefusal as error:
            return refusal(error.status, str(error))
        await self._service.configs_log.catch_up()
        return answer

    async def _until_ready(self) -> None:
        """Wait until this worker has read the topics: before, it would say that there is nothing.

        Raises:
            ConnectRefusal: 503, it has not read them in time.
        """
        try:
            async with asyncio.timeout(FORWARD_MS / 1000):
                await self._service.ready.wait()
        except TimeoutError:
            raise ConnectRefusal(
                UNAVAILABLE, "The worker starts: its topics are not read yet"
            ) from None

    async def _other_worker(self, call: RestCall) -> str | None:
        """Return HOST:PORT of the worker that has to answer; None if that is this one.

        Raises:
            ConnectRefusal: there is no leader in time, or the request has been sent on already.
        """
        is_forwarded = self.is_from_peer(call)
        try:
            async with asyncio.timeout(FORWARD_MS / 1000):
                endpoint = await self._endpoint(call, is_forwarded=is_forwarded)
        except TimeoutError:
            raise ConnectRefusal(
                CONFLICT,
                "Cannot complete request momentarily due to no known leader URL, likely because a"
                " rebalance was underway.",
            ) from None
        if endpoint == self._service.worker_id:
            return None
        if is_forwarded:
            # Two workers that took each other for the leader would send it to and fro.
            raise ConnectRefusal(
                CONFLICT,
                "Cannot complete request because of a conflicting operation: another worker has"
                " become the leader",
            )
        return endpoint

    def is_from_peer(self, call: RestCall) -> bool:
        """Return whether another worker of the group has sent a request, and signed it.

        Raises:
            ConnectRefusal: 403, it carries a signature that does not hold.
        """
        return self._keys.check(call.method, call.target, call.headers, call.body)

    async def _endpoint(self, call: RestCall, *, is_forwarded: bool) -> str:
        """Return HOST:PORT of the worker whose matter a request is, once the group has settled."""
        service = self._service
        while True:
            # A new group has no session key yet.
            if service.ready.is_set() and self._keys.is_known and service.group.is_settled:
                if (slot := _restarted_task(call)) is not None:
                    return self._owner(slot)
                if service.herder.is_leader:
                    return service.worker_id
                leader = service.group.leader_endpoint
                # A forwarded request that finds no leader here is refused at once.
                if leader and (is_forwarded or await self._accepts(leader)):
                    return leader
            await service.group.moved_on()

    def _owner(self, slot: ConnectorSlot) -> str:
        service = self._service
        found = service.herder.statuses.statuses.get((slot.connector, slot.task))
        # One that no worker has shown yet, or that does not exist, is answered here.
        if service.herder.own.has(slot) or found is None:
            return service.worker_id
        return found.worker_id if found.worker_id in service.group.peers else service.worker_id

    async def _accepts(self, endpoint: str) -> bool:
        """Return whether a worker takes connections: a killed leader leads until its session ends.

        Nothing has been sent yet, so this may be tried again.
        """
        host, _, port = endpoint.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            logger.debug("the leader at %s can't be reached; waiting for another one", endpoint)
            return False
        writer.close()
        return True

    async def _send(self, endpoint: str, call: RestCall) -> Answer:
        target = _target(call)
        signature = self._keys.sign(call.method, target, call.body)
        sent = PeerCall(
            method=call.method,
            # The signature is of the target below the prefix, as the other worker answers it.
            target=f"{self._service.prefix}{target}",
            headers={"content-type": CONTENT_TYPE, **signature},
            body=call.body,
        )
        try:
            async with asyncio.timeout(ANSWER_MS / 1000):
                status, body = await call_peer(
                    endpoint, sent, answer_bytes_max=ANSWER_BYTES_MAX, tls=self._tls
                )
            return status, msgspec.json.decode(body) if body else None
        except (
            *(OSError, TimeoutError, h11.RemoteProtocolError),
            *(msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
        ) as error:
            raise ConnectRefusal(
                BAD_GATEWAY,
                f"The worker at {endpoint} has not answered; whether the request took effect is"
                f" unknown: {error or 'it took too long'}",
            ) from error


def forwarding_of(
    service: RestPort, cluster_id: str, *, tls: ssl.SSLContext | None = None
) -> PeerForwarding:
    """Return what answers requests to a worker's connectors.

    Args:
        service: the connectors.
        cluster_id: the id of the log, which `GET /` shows.
        tls: encrypts requests to other workers; None: they are not.
    """
    rest = ConnectRest(service, ConnectorOffsets(service), cluster_id=cluster_id)
    return PeerForwarding(service, rest, tls=tls)


def _is_change(call: RestCall) -> bool:
    """Return whether a request changes what the whole group has."""
    if call.method not in _WRITES:
        return False
    if call.path[:1] == ("connectors",):
        return True
    is_level = call.path[:2] == ("admin", "loggers")
    return is_level and call.parameters.get("scope", "worker").lower() == "cluster"


def _restarted_task(call: RestCall) -> ConnectorSlot | None:
    match call.method, call.path:
        case "POST", ("connectors", name, "tasks", number, "restart"):
            if number.isdecimal() and len(number) <= 9:  # noqa: PLR2004 - the digits of an int32
                return ConnectorSlot(name, int(number))
    return None


def _target(call: RestCall) -> str:
    """Return path and query of a request, encoded."""
    path = "".join(f"/{quote(part, safe='')}" for part in call.path)
    query = urlencode({name: value for name, value in call.parameters.items() if value})
    return f"{path or '/'}?{query}" if query else path or "/"
