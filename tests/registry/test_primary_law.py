"""No id is given out twice and no acknowledged schema is lost, whoever leads and whenever.

A replicated log in memory, with elections, leaders that do not know that they are deposed,
followers that lag, and truncation of what was not committed. The decisions and the replay are the
registry's own; what it relies on is the rule of `broker/apis/schema_registry`: an append succeeds
only where the log ends at what the primary has replayed. Without that rule, the law fails.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from streamlog.registry.examination import Examiner
from streamlog.registry.registry_state import RegistryState, SchemaVersion
from streamlog.registry.schema_registration import SchemaBody, decide, prepare, settle

LIVES = 150
STEPS = 600
NODES = 3


@dataclass(eq=False)
class Entry:
    """A batch in a log: its records, and the write that it is."""

    records: list[tuple[bytes, bytes | None]]
    schema: str
    schema_id: int
    is_acknowledged: bool = False


@dataclass
class Node:
    log: list[Entry] = field(default_factory=list)
    epoch: int = 0
    """The newest epoch that it knows."""
    leads: bool = False
    """Whether it believes that it leads, in its epoch."""
    high_watermark: int = 0
    state: RegistryState = field(default_factory=RegistryState)
    position: int = 0
    plan: tuple[Entry, int] | None = None
    """A decision, and the end offset at which it was made."""


class Life:
    """One history of a cluster, from a seed."""

    def __init__(self, seed: int, *, checks_end: bool) -> None:
        self.chance = random.Random(seed)
        self.checks_end = checks_end
        self.nodes = [Node() for _ in range(NODES)]
        self.epoch, self.leader = 1, 0
        self.isr = set(range(NODES))
        self.nodes[0].leads, self.nodes[0].epoch = True, 1
        self.examiner = Examiner()
        self.acknowledged: list[Entry] = []
        self.schemas = 0

    def run(self) -> None:
        steps = [self.decide, self.append, self.fetch, self.fetch, self.replay, self.replay]
        rare = [self.elect, self.shrink, self.learn]
        for _ in range(STEPS):
            step = self.chance.choice(rare if self.chance.random() < 0.1 else steps)
            step(self.chance.randrange(NODES))
        self.check()

    def decide(self, index: int) -> None:
        """A node that believes to be the primary decides, from what it has replayed."""
        node = self.nodes[index]
        if not node.leads or node.plan is not None or node.position != len(node.log):
            return
        # A few schemas only, so that several nodes register one of them.
        number = self.chance.randrange(12)
        text = json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]})
        subject = f"s{self.chance.randrange(3)}"
        candidate = prepare(node.state, subject, SchemaBody(schema=text), normalize=None)
        content = self.examiner.content(candidate.resolved, is_new=True, normalize=False)
        found = settle(node.state, candidate, content)
        if isinstance(found, SchemaVersion):
            return
        plan = decide(node.state, candidate, content, [])
        assert isinstance(plan.answer, dict)
        records = [(each.key.encode(), each.encode_value()) for each in plan.records]
        node.plan = Entry(records, content.schema.text, int(plan.answer["id"])), node.position

    def append(self, index: int) -> None:
        node = self.nodes[index]
        if node.plan is None:
            return
        entry, expected_end = node.plan
        node.plan = None
        if not node.leads:
            return
        if self.checks_end and len(node.log) != expected_end:
            return
        node.log.append(entry)
        self.commit()

    def fetch(self, index: int) -> None:
        """A follower copies the leader's log, after it has cut off what differs."""
        leader, node = self.nodes[self.leader], self.nodes[index]
        if index == self.leader:
            return
        node.epoch, node.leads = self.epoch, False
        same = 0
        for own, theirs in zip(node.log, leader.log, strict=False):
            if own is not theirs:
                break
            same += 1
        del node.log[same:]
        node.log += leader.log[same : same + self.chance.randint(0, 2)]
        node.high_watermark = min(leader.high_watermark, len(node.log))
        if len(node.log) == len(leader.log):
            self.isr.add(index)
        self.commit()

    def commit(self) -> None:
        leader = self.nodes[self.leader]
        end = min(
            len(self.nodes[each].log) if each != self.leader else len(leader.log)
            for each in self.isr
        )
        # A replica in sync may still have a tail of its own that its next fetch cuts off.
        for each in self.isr:
            log = self.nodes[each].log
            while end > leader.high_watermark and log[end - 1] is not leader.log[end - 1]:
                end -= 1
        for entry in leader.log[leader.high_watermark : end]:
            entry.is_acknowledged = True
            self.acknowledged.append(entry)
        leader.high_watermark = max(leader.high_watermark, end)

    def replay(self, index: int) -> None:
        """A node reads what the leader has committed."""
        node, leader = self.nodes[index], self.nodes[self.leader]
        for entry in leader.log[node.position : leader.high_watermark]:
            for key, value in entry.records:
                assert node.state.apply(key, value) is None
            node.position += 1

    def elect(self, index: int) -> None:
        """The controller elects a replica in sync; the old leader learns of it later, or never."""
        if index not in self.isr or index == self.leader:
            return
        self.epoch += 1
        self.leader = index
        node = self.nodes[index]
        node.epoch, node.leads = self.epoch, True

    def shrink(self, index: int) -> None:
        if index != self.leader:
            self.isr.discard(index)
            self.commit()

    def learn(self, index: int) -> None:
        if index != self.leader:
            self.nodes[index].leads = False

    def check(self) -> None:
        # The whole log of the leader: its high watermark may be behind what its predecessor has
        # acknowledged, and what is not committed yet may still be.
        log = self.nodes[self.leader].log
        for entry in self.acknowledged:
            assert any(each is entry for each in log), "an acknowledged schema is lost"
        ids: dict[int, str] = {}
        for entry in log:
            known = ids.setdefault(entry.schema_id, entry.schema)
            assert known == entry.schema, f"id {entry.schema_id} was given out twice"
        assert sorted(ids) == [*range(1, len(ids) + 1)], "the ids have gaps"


def test_ids_are_unique_and_dense_and_no_acknowledged_schema_is_lost() -> None:
    assert live(range(LIVES), checks_end=True) > 3 * LIVES


def test_the_law_fails_without_the_check_of_the_end() -> None:
    with pytest.raises(AssertionError, match="which another schema has"):
        live(range(10 * LIVES), checks_end=False)


def live(seeds: Iterable[int], *, checks_end: bool) -> int:
    """Run lives; return how many batches were acknowledged."""
    acknowledged = 0
    for seed in seeds:
        life = Life(seed, checks_end=checks_end)
        life.run()
        acknowledged += len(life.acknowledged)
    return acknowledged
