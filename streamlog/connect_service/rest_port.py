"""REST port: what the REST API needs of the connectors behind it.

A worker of the service has it (`herder_shell`), and so has a worker of an app with connectors
(`worker/connect/app_herder`), whose code is the configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from streamlog.connect.declared_connectors import SinkConnector, SourceConnector
from streamlog.connect.herding.herder import Herder
from streamlog.connect.herding.herder_requests import Request, RequestAnswer
from streamlog.connect.parts import OffsetBook
from streamlog.log import Log
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.connector_topics import ConnectorTopics
from streamlog.worker.connect.session_keys import SessionKeys
from streamlog.worker.connect.source_slots import LoopClock


class RestGroup(Protocol):
    """The workers that share the connectors."""

    @property
    def is_settled(self) -> bool:
        """Whether this worker is a member, and the last round is carried out."""

    @property
    def peers(self) -> Sequence[str]:
        """HOST:PORT of all workers of the last round."""

    @property
    def leader_endpoint(self) -> str:
        """HOST:PORT of the leader; empty if it is not known."""

    async def moved_on(self) -> None:
        """Wait until the group may have moved on, for a short time."""


class RestPort(Protocol):
    """The connectors of one worker, as the REST API shows and changes them."""

    @property
    def is_declared(self) -> bool:
        """Whether the code of an app declares the connectors, so no request changes settings."""

    @property
    def prefix(self) -> str:
        """Where the API is on the workers' HTTP servers; empty: they have nothing else."""

    @property
    def others(self) -> Mapping[str, str]:
        """The worker's settings."""

    @property
    def worker_id(self) -> str:
        """HOST:PORT of this worker."""

    @property
    def herder(self) -> Herder:
        """Decides about connectors."""

    @property
    def ready(self) -> asyncio.Event:
        """Set once the topics are read and the group has given this worker its tasks."""

    @property
    def log(self) -> Log:
        """The log."""

    @property
    def offsets(self) -> OffsetBook:
        """The offsets of sources."""

    @property
    def offsets_log(self) -> CompactedTopic:
        """Follows the offsets of sources."""

    @property
    def configs_log(self) -> CompactedTopic:
        """Follows what operators and leaders have written."""

    @property
    def connector_topics(self) -> ConnectorTopics:
        """The topics that connectors have used."""

    @property
    def keys(self) -> SessionKeys:
        """The keys with which the workers sign their requests to each other."""

    @property
    def group(self) -> RestGroup:
        """The workers that share the connectors."""

    @property
    def task_clock(self) -> LoopClock:
        """The time."""

    @property
    def group_id(self) -> str:
        """The group of the workers."""

    @property
    def own_topics(self) -> Mapping[str, str]:
        """The topics that all workers read and write, and what they hold.

        In an app, what the names of these topics begin with.
        """

    @property
    def shared_ids(self) -> str:
        """The transactional id, or what several begin with, of every worker; "" for none.

        In a service it is the leader's; in an app, all ids begin so.
        """

    def sink_group(self, name: str) -> str:
        """Return the consumer group of a sink."""

    def declare(self, name: str, settings: Mapping[str, str]) -> SourceConnector | SinkConnector:
        """Return the connector of a configuration, its secrets resolved."""

    async def ask(self, request: Request) -> RequestAnswer:
        """Return the answer to a request."""

    async def write_offsets(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write offsets of a stopped source, all of them or none."""
