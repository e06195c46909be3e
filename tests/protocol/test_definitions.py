"""Our declarations agree with Kafka's own definitions, field by field.

The definitions have two sources, and each is used if present: a folder of Kafka's JSON files,
named by STREAMLOG_KAFKA_PROTOCOL (clients/src/main/resources/common/message in Kafka's sources,
with those of group-coordinator and metadata for the records), and the copy in kafka-python, which
is of a later Kafka.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamlog.protocol.api_table import APIS, OWN_KEY
from streamlog.protocol.messages import cluster_metadata, topics_and_configs
from streamlog.protocol.messages.produce_and_fetch import OWN_TAG
from streamlog.protocol.schema import FIXED, Field, Message, Struct, StructType, Versions
from tests.protocol.strategies import MESSAGES, every_message

Definition = Mapping[str, Any]

# Fields of Kafka 4.1, which is later than the folder of definitions.
LATER: list[Definition] = [
    {
        "of": "ConsumerGroupMetadataValue",
        "name": "MetadataHash",
        "type": "int64",
        "versions": "0+",
        "taggedVersions": "0+",
        "tag": 0,
    },
    {
        "of": "OffsetCommitValue",
        "name": "TopicId",
        "type": "uuid",
        "versions": "4+",
        "taggedVersions": "4+",
        "tag": 0,
    },
]


def folder_of_kafka() -> Path | None:
    named = os.environ.get("STREAMLOG_KAFKA_PROTOCOL")
    return Path(named) if named else None


def folder_of_kafka_python() -> Path | None:
    package = importlib.util.find_spec("kafka")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "protocol" / "schemas" / "resources"


NAMES = {
    "HeartbeatTopicPartitions": "TopicPartitions",
    "AssignedTopicPartition": "TopicPartition",
    "RegisteredListener": "Listener",
    "ReplacedConfig": "AlterableConfig",
    "TransactionStateRecord": "TransactionState",
    "DescribedTransaction": "TransactionState",
    "DescribeProducersTopic": "TopicRequest",
    "ElectedTopicPartitions": "TopicPartitions",
    "GroupTopicPartition": "TopicPartition",
    "FetchingReplica": "ReplicaState",
    "DescribedProducer": "ProducerState",
    "DivergingEpoch": "EpochEndOffset",
    "FoundCoordinator": "Coordinator",
    "ListedConfigResource": "ConfigResource",
    "ReplaceConfigsResource": "AlterConfigsResource",
    "QuotaFilter": "ComponentData",
    "QuotaEntity": "EntityData",
    "QuotaValue": "ValueData",
    "DescribedQuota": "EntryData",
    "QuotaOperation": "OpData",
    "QuotaAlteration": "EntryData",
    "AlteredQuota": "EntryData",
    "ProposedTopic": "TopicData",
    "ProposedPartition": "PartitionData",
    "AlteredTopic": "TopicData",
    "AlteredPartition": "PartitionData",
    "QuotaEntityData": "EntityData",
    "VoteNodeEndpoint": "NodeEndpoint",
    "VotePartition": "PartitionData",
    "VoteTopic": "TopicData",
    "VotePartitionResult": "PartitionData",
    "VoteTopicResult": "TopicData",
    "BeginEpochPartition": "PartitionData",
    "BeginEpochTopic": "TopicData",
    "EpochPartitionResult": "PartitionData",
    "EpochTopicResult": "TopicData",
    "PreferredCandidate": "ReplicaInfo",
    "EndEpochPartition": "PartitionData",
    "EndEpochTopic": "TopicData",
    "DescribeQuorumPartition": "PartitionData",
    "DescribeQuorumTopic": "TopicData",
    "QuorumReplicaState": "ReplicaState",
    "DescribedQuorum": "PartitionData",
    "DescribedQuorumTopic": "TopicData",
    "QuorumListener": "Listener",
    "QuorumNode": "Node",
    "PartitionSnapshotResult": "PartitionSnapshot",
    "TopicSnapshotResult": "TopicSnapshot",
    "QuorumVoter": "Voter",
    "FetchedSnapshotId": "SnapshotId",
    "SnapshotLeader": "LeaderIdAndEpoch",
}
"""Kafka's names by ours, where Kafka's mean different things in different files."""


@pytest.fixture(params=[folder_of_kafka, folder_of_kafka_python])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path | None = request.param()
    if found is None or not found.is_dir():
        pytest.skip("there is no folder of definitions")
    return found


KAFKAS = [api for api in APIS.values() if api.key < OWN_KEY]


def definition(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path.name} does not exist")
    lines = (re.sub(r"^\s*//.*|\s//[^\"]*$", "", line) for line in path.read_text().splitlines())
    read: dict[str, Any] = json.loads("\n".join(lines))
    return read


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def default_of(theirs: Definition) -> object:
    kind, given = theirs["type"], theirs.get("default")
    # Kafka declares an empty string, but its handlers set null where there is no error.
    is_message = theirs["name"] == "ErrorMessage" and "nullableVersions" in theirs
    if given == "null" or is_message:
        return None
    if kind == "bool":
        return str(given).lower() == "true"
    unset: dict[str, object] = {"string": given or "", "bytes": b"", "uuid": bytes(16)}
    if kind in FIXED and kind not in unset:
        return int(str(given or 0), 0)
    # Records are null and lists empty; a struct at its default is None here.
    return unset.get(kind)


def versions_of(theirs: Definition) -> str:
    """Return a field's versions; tagged fields of the transaction log name only their tag's."""
    return str(theirs.get("versions") or theirs["taggedVersions"])


def check_fields(declared: StructType, theirs: Sequence[Definition], scope: Versions) -> None:
    """Compare the fields of both declarations within the versions of `scope`."""
    ours = [
        field
        for field in declared.__fields__
        if not is_empty(field.versions & scope) and not is_own(field)
    ]
    kept = [field for field in theirs if not is_empty(Versions.parse(versions_of(field)) & scope)]
    names = [field.name for field in ours]
    assert names == [snake_case(field["name"]) for field in kept], declared.__name__
    for field, defined in zip(ours, kept, strict=True):
        check_field(f"{declared.__name__}.{field.name}", field, defined, scope)


def check_field(name: str, ours: Field, theirs: Definition, scope: Versions) -> None:
    versions = Versions.parse(versions_of(theirs)) & scope
    assert (ours.versions & scope) == versions, name
    tag = theirs.get("tag")
    assert ours.tag == (None if tag is None else int(tag)), name  # Kafka quotes some.
    if ours.tag is not None:
        assert (Versions.parse(theirs["taggedVersions"]) & versions) == versions, name
    nullable = Versions.parse(theirs.get("nullableVersions", "none"))
    if ours.kind != "struct" or ours.tag is None:
        assert span(ours.nullable & versions) == span(nullable & versions), name
    assert ours.default == default_of(theirs), name
    kind = theirs["type"]
    if ours.kind == "array" and ours.tag is not None:
        assert ours.starts_null == (theirs.get("default") == "null"), name
    match ours.kind, ours.item:
        case "array", StructType() as item:
            assert kind == f"[]{NAMES.get(item.__name__, item.__name__)}", name
            check_fields(item, theirs["fields"], versions)
        case "array", item:
            assert kind == f"[]{item}", name
        case "struct", StructType() as item:
            assert kind == NAMES.get(item.__name__, item.__name__), name
            check_fields(item, theirs["fields"], versions)
        case own, _:
            assert kind == own, name


def is_own(field: Field) -> bool:
    """Return whether a field is unknown to Kafka, which skips its tag."""
    return field.tag is not None and field.tag >= OWN_TAG


def is_empty(versions: Versions) -> bool:
    return versions.first > versions.last


def span(versions: Versions) -> Versions | None:
    return None if is_empty(versions) else versions


def with_common_structs(theirs: dict[str, Any]) -> list[Definition]:
    """Return the fields, with the common structs expanded where they are used."""
    shared = {struct["name"]: struct["fields"] for struct in theirs.get("commonStructs", [])}

    def expand(field: dict[str, Any]) -> Definition:
        inner = field.get("fields") or shared.get(field["type"].removeprefix("[]"))
        return {**field, "fields": [expand(each) for each in inner]} if inner else field

    return [expand(field) for field in theirs["fields"]]


@every_message
def test_a_message_is_declared_as_kafka_defines_it(
    message_type: type[Message], folder: Path
) -> None:
    theirs = definition(folder, message_type.__name__)
    scope = message_type.__versions__
    if Versions.parse(theirs["validVersions"]).last < scope.last:
        pytest.skip("the definition is of an older Kafka")
    flexible = span(Versions.parse(theirs["flexibleVersions"]) & scope)
    assert message_type.__flexible_from__ == (flexible and flexible.first)
    fields = with_common_structs(theirs)
    later = [field for field in LATER if field["of"] == message_type.__name__]
    names = {field["name"] for field in fields}
    check_fields(message_type, [*fields, *(f for f in later if f["name"] not in names)], scope)


@pytest.mark.parametrize("api", KAFKAS, ids=lambda api: api.name)
def test_an_api_has_kafkas_key(api: Any, folder: Path) -> None:
    assert definition(folder, api.request.__name__)["apiKey"] == api.key
    assert definition(folder, api.response.__name__)["apiKey"] == api.key


def test_the_comparison_detects_differences() -> None:
    """Each change makes a declaration wrong in one way."""

    def fields(struct: type[Struct]) -> list[dict[str, Any]]:
        return [dict(field) for field in defined[struct.__name__]]

    defined = {
        "ApiVersion": [
            {"name": "ApiKey", "type": "int16", "versions": "0+"},
            {"name": "MinVersion", "type": "int16", "versions": "0+"},
            {"name": "MaxVersion", "type": "int16", "versions": "0+"},
        ],
        "CreatableTopicConfig": [
            {"name": "Name", "type": "string", "versions": "0+"},
            {"name": "Value", "type": "string", "versions": "0+", "nullableVersions": "0+"},
        ],
    }
    scope = Versions(0, 4)
    check_fields(cluster_metadata.ApiVersion, fields(cluster_metadata.ApiVersion), scope)
    check_fields(
        topics_and_configs.CreatableTopicConfig,
        fields(topics_and_configs.CreatableTopicConfig),
        scope,
    )
    wrong: list[dict[str, Any]] = [
        {"type": "int32"},
        {"versions": "1+"},
        {"name": "Key"},
        {"default": "7"},
        {"tag": 0, "taggedVersions": "0+"},
    ]
    for difference in wrong:
        changed = fields(cluster_metadata.ApiVersion)
        changed[0] |= difference
        with pytest.raises(AssertionError):
            check_fields(cluster_metadata.ApiVersion, changed, scope)
    changed = fields(topics_and_configs.CreatableTopicConfig)
    del changed[1]["nullableVersions"]
    with pytest.raises(AssertionError):
        check_fields(topics_and_configs.CreatableTopicConfig, changed, scope)


def structs_of(declared: StructType) -> Iterator[StructType]:
    for field in declared.__fields__:
        if isinstance(field.item, StructType):
            yield field.item
            yield from structs_of(field.item)


def test_every_declared_struct_is_part_of_a_message() -> None:
    used = {struct for message_type in MESSAGES for struct in structs_of(message_type)}
    modules = {message_type.__module__ for message_type in MESSAGES}
    declared = {
        value
        for module in modules
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, StructType) and not issubclass(value, Message) and value is not Struct
    }
    assert declared == used
