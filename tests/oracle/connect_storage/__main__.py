"""`python -m tests.oracle.connect_storage`: Apache's stores and ours over the same topics.

Random histories: each call is made by one of both sides, and read by both; at the end both have to
hold what the account of the calls alone says. Then the configs topic is compacted at a random
offset: connectors and target states stay, and the tasks of a connector are those of the account or
count as not dealt. At last services take over from each other (`services.py`). Differences are
printed; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from conformance.clusters import own_broker
from conformance.kafka import Unavailable
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.oracle.connect_rest.answers import differences
from tests.oracle.connect_storage.account import Account, State, form
from tests.oracle.connect_storage.calls import NAMES, STRANGE_VALUES, Call, random_calls
from tests.oracle.connect_storage.java_stores import JavaStores, store_settings
from tests.oracle.connect_storage.our_stores import KINDS, open_stores
from tests.oracle.connect_storage.services import services

CALLS: Final = 60
"""The calls of one history."""


@dataclass(frozen=True, slots=True)
class History:
    """One history over topics of its own."""

    number: int
    random: Random
    java: JavaStores
    bootstrap: str
    accounts: tuple[Account, Account] = field(
        default_factory=lambda: (Account(is_ours=False), Account(is_ours=True))
    )
    """What Apache's stores have to know, and what ours have to."""

    async def run(self) -> list[str]:
        """Make the calls; returns the differences."""
        calls, number = [*random_calls(self.random, CALLS)], self.number
        topics = {kind: f"{kind}-{number}" for kind in KINDS}
        self.java.open(store_settings(self.bootstrap, topics))
        async with Log.open(f"kafka://{self.bootstrap}") as log, open_stores(log, topics) as ours:
            for call in calls:
                self._apply(call)
                if call.is_ours:
                    await ours.do(call.asked)
                else:
                    await asyncio.to_thread(self.java.do, call.asked)
            states = {
                "Apache's stores": form(self.java.state(NAMES)),
                "our stores": form(await ours.state(NAMES)),
            }
            found = [
                f"history {number}: {side}: {place}"
                for account, (side, state) in zip(self.accounts, states.items(), strict=True)
                for place in differences(account.state(), state)
            ]
            if found:
                found += [f"    {'ours' if own else 'Apache'}: {asked}" for own, asked in calls]
            return [*found, *await self._compacted(log)]

    def _apply(self, call: Call) -> None:
        writer = self.accounts[call.is_ours]
        if call.asked.get("is_safe") and not writer.may_write(call.asked):
            return
        for account in self.accounts:
            account.apply(call.asked)

    async def _compacted(self, log: Log) -> list[str]:
        """Write the configs topic again as compaction may leave it; returns the differences."""
        topics = {kind: f"{kind}-{self.number}-compacted" for kind in KINDS}
        columns = await log.read_range(TopicPartition(f"config-{self.number}", 0))
        # A strange value under a connector's key: compaction keeps it, and not what it stands for.
        strange = {each.encode() for each in STRANGE_VALUES}
        records = [(each.key, each.value) for each in columns if each.value not in strange]
        dirty = self.random.randint(0, len(records))
        last = {key: at for at, (key, _) in enumerate(records)}
        left = [
            (key, value)
            for at, (key, value) in enumerate(records)
            if at >= dirty or (last[key] == at and value is not None)
        ]
        config = NewTopic(topics["config"], 1, configs={"cleanup.policy": "compact"})
        await log.admin().create_topics([config])
        async with log.producer() as producer:
            for key, value in left:
                await producer.send(config.name, value, key=key)
        self.java.open(store_settings(self.bootstrap, topics))
        async with open_stores(log, topics) as ours:
            sides = {
                "Apache's stores": self.java.state(NAMES),
                "our stores": await ours.state(NAMES),
            }
        return [
            f"history {self.number}, compacted below {dirty}: {side}: {place}"
            for side, read in sides.items()
            for place in _wrong_after_compaction(self.accounts[0].state(), read)
        ]


def _wrong_after_compaction(expected: State, read: Mapping[str, Any]) -> Iterator[str]:
    for part in ("connectors", "targets", "session_key"):
        yield from differences(expected[part], read[part])
    for name in expected["connectors"]:
        tasks, dealt = expected["tasks"].get(name, []), read["tasks"].get(name, [])
        # None: Kafka Connect's leader asks a connector without tasks for its tasks, as ours does.
        if name not in read["inconsistent"] and dealt and dealt != tasks:
            yield f"tasks of {name!r}: {tasks}, read {dealt}"


async def histories(count: int, seed: int, java: JavaStores, bootstrap: str) -> list[str]:
    """Run all histories; returns the differences."""
    found = []
    for number in range(count):
        found += await History(number, Random(f"{seed}-{number}"), java, bootstrap).run()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the histories and the services, and print the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.connect_storage")
    parser.add_argument("--histories", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(arguments)
    try:
        java = JavaStores()
    except Unavailable as error:
        print(error)
        return 2
    with own_broker() as bootstrap, java:
        found = asyncio.run(histories(options.histories, options.seed, java, bootstrap))
        found += services(java, bootstrap)
    print("\n".join(found))
    counts = Counter(histories=options.histories, calls=options.histories * CALLS)
    counts["differences"] = len(found)
    for name, count in counts.items():
        print(f"{count:6} {name}")
    if options.report is not None:
        options.report.write_text(json.dumps(counts, indent=2))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
