"""Apache Kafka's tools at our broker: the Java client, as it produces, consumes and administers.

They are what Kafka's own system tests are made of, one process for each. A tool counts as passed if
it ends well and has said what it says when all of its records or changes arrived.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from conformance import kafka
from conformance.clusters import own_broker
from conformance.suites.cases import FAILED, PASSED, Case, Unavailable, Verdict

TOOL_S = 300
COUNT = 500
SETTINGS = {
    "authorizer.class.name": "standard",
    "allow.everyone.if.no.acl.found": "true",
}
_PACKAGE = "org.apache.kafka.tools."


@dataclass(frozen=True, slots=True)
class Tool:
    """One call."""

    name: str
    main: str
    arguments: str
    """With spaces between them; {address} is the broker's, {folder} has the files."""
    says: str
    """A pattern that its output has to have."""


def _topic(arguments: str, says: str = "") -> Tool:
    name = f"TopicCommand {arguments.split(maxsplit=1)[0]}"
    return Tool(name, "TopicCommand", f"--bootstrap-server {{address}} {arguments}", says)


def _consumer(protocol: str) -> Tool:
    return Tool(
        f"VerifiableConsumer, {protocol} group",
        "VerifiableConsumer",
        f"--bootstrap-server {{address}} --topic t --group-id {protocol} --max-messages {COUNT} "
        f"--reset-policy earliest --group-protocol {protocol}",
        f'"offsets_committed".*"offset":{COUNT}.*"success":true',
    )


def _producer(name: str, options: str) -> Tool:
    return Tool(
        f"ProducerPerformance, {name}",
        "ProducerPerformance",
        f"--topic performance --num-records 20000 --record-size 200 --throughput -1 "
        f"--producer-props bootstrap.servers={{address}} {options}",
        "20000 records sent",
    )


def _move(step: str, says: str) -> Tool:
    return Tool(
        f"ReassignPartitionsCommand {step}, to another log directory",
        "reassign.ReassignPartitionsCommand",
        f"{{at}} --reassignment-json-file {{folder}}/moves {step}",
        says,
    )


TOOLS = (
    Tool("BrokerApiVersionsCommand", "BrokerApiVersionsCommand", "{at}", r"Produce\(0\): 0 to"),
    _topic("--create --topic t --partitions 1 --replication-factor 1", "Created topic t"),
    _topic("--describe --topic t", "PartitionCount: 1"),
    Tool(
        "VerifiableProducer, idempotent",
        "VerifiableProducer",
        f"--bootstrap-server {{address}} --topic t --max-messages {COUNT} --acks -1",
        f'"acked":{COUNT}',
    ),
    _consumer("classic"),
    _consumer("consumer"),
    Tool(
        "TransactionalMessageCopier",
        "TransactionalMessageCopier",
        "--broker-list {address} --input-topic t --input-partition 0 --output-topic copied "
        f"--transactional-id copier --consumer-group copier --transaction-size 50 "
        f"--max-messages {COUNT}",
        f'"totalProcessed":{COUNT}',
    ),
    Tool(
        "TransactionalMessageCopier, with random aborts",
        "TransactionalMessageCopier",
        "--broker-list {address} --input-topic t --input-partition 0 --output-topic again "
        f"--transactional-id again --consumer-group again --transaction-size 50 "
        f"--max-messages {COUNT} --enable-random-aborts",
        f'"totalProcessed":{COUNT}',
    ),
    _producer("no codec", "compression.type=none"),
    _producer("zstd", "compression.type=zstd"),
    _producer("in transactions", "acks=all --transactional-id p --transaction-duration-ms 100"),
    Tool("GetOffsetShell", "GetOffsetShell", "{at} --topic t", f"t:0:{COUNT}"),
    Tool(
        "ConsumerGroupCommand --describe",
        "consumer.group.ConsumerGroupCommand",
        "{at} --describe --group classic",
        rf"classic +t +0 +{COUNT} +{COUNT} +0 ",
    ),
    Tool(
        "ConsumerGroupCommand --reset-offsets",
        "consumer.group.ConsumerGroupCommand",
        "{at} --reset-offsets --group classic --topic t --to-earliest --execute",
        r"classic +t +0 +0",
    ),
    Tool(
        "ConsumerGroupCommand --delete",
        "consumer.group.ConsumerGroupCommand",
        "{at} --delete --group classic",
        "was successful",
    ),
    Tool("TransactionsCommand list", "TransactionsCommand", "{at} list", "copier .*CompleteCommit"),
    _move("--execute", r"Successfully started moving log directory to \S+second for replica t-0"),
    _move("--verify", "Reassignment of replica t-0-1 completed successfully"),
    Tool("LogDirsCommand", "LogDirsCommand", "{at} --describe", '"partition":"t-0"'),
    Tool(
        "AclCommand --add",
        "AclCommand",
        "{at} --add --allow-principal User:alice --operation Read --topic guarded",
        "principal=User:alice",
    ),
    Tool("AclCommand --list", "AclCommand", "{at} --list --topic guarded", "principal=User:alice"),
    Tool(
        "ClientMetricsCommand --alter",
        "ClientMetricsCommand",
        "{at} --alter --name java --metrics org.apache.kafka. --interval 60000"
        " --match client_software_name=apache-kafka-java",
        "Altered client metrics config for java",
    ),
    Tool("ClientMetricsCommand --list", "ClientMetricsCommand", "{at} --list", "^java$"),
    Tool(
        "ClientMetricsCommand --describe",
        "ClientMetricsCommand",
        "{at} --describe --name java",
        "interval.ms=60000\\s+match=client_software_name=apache-kafka-java",
    ),
    Tool(
        "ClientMetricsCommand --delete",
        "ClientMetricsCommand",
        "{at} --delete --name java",
        "Deleted client metrics config for java",
    ),
    Tool(
        "DeleteRecordsCommand",
        "DeleteRecordsCommand",
        "{at} --offset-json-file {folder}/before",
        "low_watermark: 100",
    ),
    _topic("--delete --topic t"),
)
_BEFORE = '{"partitions": [{"topic": "t", "partition": 0, "offset": 100}], "version": 1}'


def verdict() -> Verdict:
    """Run all tools, one after the other.

    Raises:
        Unavailable: they can't be had.
    """
    try:
        kafka.home()
    except kafka.Unavailable as error:
        raise Unavailable(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="streamlog-java-") as folder:
        (Path(folder) / "before").write_text(_BEFORE)
        second = f"{folder}/second"
        move = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [second]}
        (Path(folder) / "moves").write_text(json.dumps({"version": 1, "partitions": [move]}))
        with own_broker(SETTINGS, others=[second]) as address:
            cases = [_case(tool, address, folder) for tool in TOOLS]
    return Verdict(f"Apache Kafka {kafka.VERSION}'s tools", cases, {})


def _case(tool: Tool, address: str, folder: str) -> Case:
    at = f"--bootstrap-server {address}"
    arguments = tool.arguments.format(address=address, at=at, folder=folder).split()
    try:
        done = subprocess.run(
            kafka.java(_PACKAGE + tool.main, *arguments),
            capture_output=True,
            text=True,
            timeout=TOOL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Case(tool.name, FAILED, f"it takes longer than {TOOL_S} s")
    if done.returncode == 0 and re.search(tool.says, done.stdout):
        return Case(tool.name, PASSED)
    said = " ".join((done.stdout + done.stderr).split())
    return Case(tool.name, FAILED, f"exit code {done.returncode}: {said[-300:]}")
