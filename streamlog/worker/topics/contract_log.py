"""Contract log: the contract of each app of a log, in its topic of versions.

A worker compares its program with the contracts of all other apps before it starts, and records its
own once it may start. It refuses to start only if its program differs from the version that ran
before in a way that breaks a reader, or its own reading: an app that is restarted unchanged runs,
whatever other apps do. An app that a streamlog without contracts has recorded has the contract that
its stored topology tells of.

Rule: contracts of other apps are read as far as possible. A topic that is damaged, or that this
worker may not read, does not keep it from starting. Not done here: the comparison
(`contracts/contract_findings`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.client.admin import NewTopic
from streamlog.contracts.contract import Contract, contract_of_blueprint
from streamlog.contracts.contract_findings import (
    PARTITION_COUNT,
    ContractFinding,
    compare_contracts,
)
from streamlog.errors import ContractBroken, CorruptData, LogError, RequestTimedOut, TopicExists
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.topics.app_topics import BROKER_DEFAULT
from streamlog.worker.topics.version_log import (
    CONFIGS,
    CONTRACT,
    VERSION_TOPIC_SUFFIX,
    current,
    version_topic,
)

logger = repeated.logger(__name__)

CONTRACT_FORMAT: Final = 1
READS_AT_ONCE: Final = 16
"""The most topics that are read at one time."""


class _ContractRecord(msgspec.Struct, frozen=True):
    """The record of a contract."""

    contract: Contract
    format: int


def encode_contract(contract: Contract) -> bytes:
    """Return the record of a contract."""
    record = _ContractRecord(contract, CONTRACT_FORMAT)
    return msgspec.json.encode(record, order="deterministic")


def decode_contract(app_id: str, records: Iterable[tuple[int, bytes]]) -> Contract | None:
    """Return the contract after these records, each an offset and a value; None if there is none.

    Raises:
        CorruptData: a record is malformed, or a newer streamlog wrote it.
    """
    records = [*records]
    data = next((data for _, data in reversed(records) if data.startswith(CONTRACT)), None)
    if data is None:
        version = current(records)
        return None if version is None else contract_of_blueprint(app_id, version.blueprint)
    try:
        found = msgspec.json.decode(data, type=_ContractRecord)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptData(f"the contract of {app_id!r} is malformed: {error}") from error
    if found.format != CONTRACT_FORMAT:
        raise CorruptData(
            f"the contract of {app_id!r} has format {found.format}, but this streamlog reads "
            f"format {CONTRACT_FORMAT}: use the newer streamlog that wrote it"
        )
    return found.contract


@dataclass(frozen=True, slots=True)
class LogContracts:
    """The contracts of all apps of a log."""

    contracts: Mapping[str, Contract]
    """By app."""
    unread: Mapping[str, str]
    """The apps whose contract can't be read, with the reason."""
    partitions: Mapping[str, int]
    """The partition count of each topic."""

    def check(self, contract: Contract) -> list[ContractFinding]:
        """Return the findings of an app whose contract is to be this one."""
        others = [each for app, each in self.contracts.items() if app != contract.app]
        before = self.contracts.get(contract.app)
        return compare_contracts(
            [*others, contract], app=contract.app, before=before, partitions=self.partitions
        )


async def read_contracts(log: Log) -> LogContracts:
    """Return the contracts of all apps of a log."""
    topics = {each.name: each.partitions for each in await log.admin().list_topics()}
    apps = [
        topic.removesuffix(VERSION_TOPIC_SUFFIX)
        for topic in topics
        if topic.endswith(VERSION_TOPIC_SUFFIX)
    ]
    limit = asyncio.Semaphore(READS_AT_ONCE)
    contracts: dict[str, Contract] = {}
    unread: dict[str, str] = {}

    async def read(app: str) -> None:
        async with limit:
            try:
                found = await log.read_range(TopicPartition(version_topic(app), 0))
                contract = decode_contract(app, ((r.offset, r.value or b"") for r in found))
            except (CorruptData, LogError, RequestTimedOut) as error:
                unread[app] = str(error)
                return
        if contract is not None:
            contracts[app] = contract

    async with asyncio.TaskGroup() as group:
        for app in apps:
            group.create_task(read(app))
    return LogContracts(dict(sorted(contracts.items())), unread, topics)


async def check_contract(log: Log, contract: Contract, *, accept_breaks: bool) -> LogContracts:
    """Compare the contract of a program with those of all other apps; return what was read.

    Args:
        log: the log.
        contract: the program's contract.
        accept_breaks: consent to what the program breaks.

    Raises:
        ContractBroken: the program breaks what its former version did not, without consent.
    """
    found = await read_contracts(log)
    for app, reason in found.unread.items():
        logger.warning("the contract of app %s can't be compared: %s", app, reason)
    # Partition counts are checked, and refused, with the topics themselves (`app_topics`).
    findings = [each for each in found.check(contract) if each.kind != PARTITION_COUNT]
    # 1. `shop` was started with consent, and `billing` can't read its records since.
    # 2. A worker of `shop` crashes and is restarted: refusing it now would mend nothing.
    broken = [each for each in findings if each.breaks and each.is_new]
    if broken and not accept_breaks:
        raise ContractBroken(_refusal(contract.app, broken))
    for each in findings:
        level = logger.warning if each.breaks else logger.info
        level("contract: %s", each.message)
    return found


async def record_contract(log: Log, contract: Contract, found: LogContracts) -> None:
    """Record the contract of a program that starts, if it is not the one that was found."""
    if found.contracts.get(contract.app) == contract or not contract.topics:
        return
    topic = version_topic(contract.app)
    if topic not in found.partitions:
        new = NewTopic(topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)
        try:
            await log.admin().create_topics([new])
        except TopicExists:
            logger.debug("topic %s exists", topic)
    async with log.producer(linger_ms=0) as producer:
        await (await producer.send(topic, encode_contract(contract), partition=0))


def _refusal(app_id: str, broken: list[ContractFinding]) -> str:
    lines = "\n".join(f"  {each.message}" for each in broken)
    others = sorted({app for each in broken for app in each.readers} - {app_id})
    victims = ", ".join(map(repr, others))
    harm = f"would break {victims}" if others else "can't read what other apps write"
    return (
        f"app {app_id!r} {harm}:\n{lines}\n"
        "Nothing was started or changed. Keep what the readers need until they no longer read it, "
        "and compare before each deployment: streamlog -A MODULE contracts check. Start all the "
        "same: worker --accept-contract-breaks"
    )
