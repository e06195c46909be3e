"""Needed ACLs: what a cluster with an authorizer has to allow, so that a connector can run.

A worker logs in as one principal, for itself and for all its connectors: settings of clients in a
connector's configuration (`producer.override.*`) have no effect. So there are two parts: what every
worker of the group needs, once, and what each connector adds.

Rule: nothing is listed that works without. IDEMPOTENT_WRITE on the cluster is not: since Kafka 2.8,
a producer needs WRITE on any topic instead (KIP-679), and a worker has that on its own topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.declared_connectors import SinkConnector, SourceConnector
from streamlog.connect.herding.herder_requests import NOT_FOUND, ConnectRefusal
from streamlog.connect.transforms.new_record_state import ExtractNewRecordState
from streamlog.connect.transforms.routing import RegexRouter, TimestampRouter
from streamlog.connect.transforms.transform_chain import TRANSFORMS, ChainStep, chain_of
from streamlog.connect_service.configured import ConfiguredSource
from streamlog.connect_service.rest_port import RestPort

TOPIC_PREFIX: Final = "topic.prefix"
"""The setting of Java's sources for tables: what the names of their topics begin with."""


class NeededAcl(msgspec.Struct, frozen=True, kw_only=True):
    """Operations on one resource that the workers' principal needs."""

    scope: Literal["worker", "connector"]
    """Who needs it: every worker of the group, or this connector."""
    resource_type: Literal["topic", "group", "transactional-id"]
    name: str
    pattern: Literal["literal", "prefixed"] = "literal"
    operations: tuple[str, ...]
    why: str


class NeededAcls(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /connectors/NAME/acls`."""

    group: str
    """The group of the workers."""
    acls: list[NeededAcl]
    notes: list[str]
    """What can't be known from here."""


async def needed_acls(service: RestPort, name: str, *, is_new_cluster: bool) -> NeededAcls:
    """Return what a connector and the workers that run it need.

    CREATE is needed for the topics that are missing: those that the worker can't see, which may be
    there for others.

    Args:
        service: the connectors of one worker.
        name: the connector.
        is_new_cluster: whether no topic is there: for a cluster that is yet to be set up.

    Raises:
        ConnectRefusal: 404, there is no such connector.
        ConfigError: its configuration is wrong, or a secret can't be found.
    """
    settings = service.herder.configs.connectors.get(name)
    if settings is None:
        raise ConnectRefusal(NOT_FOUND, f"Connector {name} not found")
    connector = service.declare(name, settings)
    there: Collection[str] = ()
    if not is_new_cluster:
        there = {topic.name for topic in await service.log.admin().list_topics()}
    acls, notes = [*_of_workers(service, there)], []
    letters = connector.policy.dlq_topic(name)
    if isinstance(connector, SinkConnector):
        acls += _of_sink(service, connector, there)
    else:
        known, prefix = _topics_of(service, connector)
        # A source has noted the topic of its dead letters as well.
        topics = {*known} - {letters}
        acls += _of_source(service, connector, topics, there)
        if prefix:
            acls.append(_on_topic(prefix, "write", "create", why="its topics", pattern="prefixed"))
        elif not topics:
            notes.append(
                f"the records of {name} name their topics, and none is written yet: give WRITE and "
                "CREATE on them, or ask again once it has written"
            )
    if letters is not None:
        acls.append(_created(letters, there, "write", why="its dead letters"))
    if service.is_declared:
        notes.append(
            "topics of streams, tables and agents of the app are not listed: docs/security.md"
        )
    return NeededAcls(group=service.group_id, acls=acls, notes=notes)


def _of_workers(service: RestPort, there: Collection[str]) -> Iterator[NeededAcl]:
    yield NeededAcl(
        scope="worker",
        resource_type="group",
        name=service.group_id,
        operations=("read",),
        why="the workers' group",
    )
    for topic, why in service.own_topics.items():
        if service.is_declared:
            # A worker compares the settings of the app's topics with those that it wants.
            operations = ("read", "write", "create", "describe_configs")
            yield _on_topic(topic, *operations, why=why, scope="worker", pattern="prefixed")
        else:
            yield _created(topic, there, "read", "write", why=why, scope="worker")
    if service.shared_ids:
        yield NeededAcl(
            scope="worker",
            resource_type="transactional-id",
            name=service.shared_ids,
            pattern="prefixed" if service.is_declared else "literal",
            operations=("write",),
            why="transactions of the app" if service.is_declared else "changes by the leader",
        )


def _of_source(
    service: RestPort,
    connector: SourceConnector,
    topics: Collection[str],
    there: Collection[str],
) -> Iterator[NeededAcl]:
    # In an app, the records of sources are in the worker's transactions.
    if not service.is_declared:
        yield NeededAcl(
            scope="connector",
            resource_type="transactional-id",
            name=f"{service.group_id}-{connector.name}-",
            pattern="prefixed",
            operations=("write",),
            why="transactions of its tasks",
        )
    for topic in sorted(topics):
        yield _created(topic, there, "write", why="its records")


def _of_sink(
    service: RestPort, connector: SinkConnector, there: Collection[str]
) -> Iterator[NeededAcl]:
    group = service.sink_group(connector.name)
    for operation, why in (("read", "its group"), ("delete", "`connectors offsets --reset`")):
        yield NeededAcl(
            scope="connector", resource_type="group", name=group, operations=(operation,), why=why
        )
    for name in sorted(there if connector.pattern else ()):
        if connector.pattern and connector.pattern.fullmatch(name):
            yield _on_topic(name, "read", why="its records")
    for spec in connector.topics:
        yield _created(spec.name, there, "read", why="its records")
        if connector.is_own_topic:
            yield _on_topic(spec.name, "delete", why="records that the target has are removed")


def _created(
    topic: str,
    there: Collection[str],
    *operations: str,
    why: str,
    scope: Literal["worker", "connector"] = "connector",
) -> NeededAcl:
    """Return what a topic needs that is created if it is missing."""
    create = () if topic in there else ("create",)
    return _on_topic(topic, *operations, *create, why=why, scope=scope)


def _on_topic(
    topic: str,
    *operations: str,
    why: str,
    scope: Literal["worker", "connector"] = "connector",
    pattern: Literal["literal", "prefixed"] = "literal",
) -> NeededAcl:
    return NeededAcl(
        scope=scope,
        resource_type="topic",
        name=topic,
        pattern=pattern,
        operations=operations,
        why=why,
    )


def _topics_of(service: RestPort, connector: SourceConnector) -> tuple[Collection[str], str]:
    """Return the topics of a source, or what their names begin with; neither if that is unknown."""
    if not isinstance(connector, ConfiguredSource):
        return {spec.name for spec in connector.topics.values()}, ""
    settings = service.herder.configs.connectors[connector.name]
    steps = chain_of(settings).steps
    prefix = settings.get(TOPIC_PREFIX, "")
    if prefix and not connector.topic and not any(map(_may_route, steps)):
        return (), prefix
    try:
        used = service.connector_topics.of(connector.name)
    except ConnectRefusal:
        # The worker notes no topics: `topic.tracking.enable=false`.
        used = []
    # A source for several tables names a topic in each record, whatever `topic` says; what a Java
    # class names comes from its prefix.
    own = () if connector.java is not None else connector.source.topic_names()
    named = own or ([connector.topic] if connector.topic else ())
    return {*used, *(name for each in named for name in _routed(each, steps))}, ""


def _may_route(step: ChainStep) -> bool:
    """Return whether a transform may change the topic of a record."""
    kind: type[object] = type(step.transform)
    if isinstance(step.transform, ExtractNewRecordState):
        return bool(step.transform.route_by_field)
    return kind in (RegexRouter, TimestampRouter) or kind not in TRANSFORMS.values()


def _routed(topic: str, steps: Sequence[ChainStep]) -> set[str]:
    """Return what becomes of a topic's name in transforms; none if only the records tell."""
    names = {topic}
    for step in steps:
        if isinstance(step.transform, RegexRouter):
            try:
                behind = {step.transform.renamed(name) for name in names}
            except BadRecord:
                # It names a group that is not there, and refuses all records.
                return set()
            # A predicate may look at the record, so either name may come out.
            names = behind if step.predicate is None else names | behind
        elif _may_route(step):
            return set()
    return names
