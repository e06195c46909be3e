"""Rules of the controller, left out one at a time: the fault that each rule prevents.

`holds` is the rule as shipped; without it, the planted fault shows.
"""

from __future__ import annotations

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.quorum.controller.leader_elections import ElectionRules
from streamlog.broker.quorum.metadata.registrations import NO_LEADER
from streamlog.protocol.error_codes import ErrorCode
from tests.broker.quorum.deciding import Deciding

pytestmark = pytest.mark.parametrize("holds", [True, False], ids=["holds", "left out"])


def three(rules: ElectionRules, *, flush: str = "always") -> Deciding:
    """Return three brokers, and a partition that broker 2 leads."""
    cluster = Deciding(rules=rules, config=BrokerConfig(flush=flush))
    cluster.start(1, 2, 3)
    cluster.create(replicas=[[2, 1, 3]])
    return cluster


def test_a_late_copy_of_a_refused_proposal_adds_no_replica(holds: bool) -> None:
    cluster = three(ElectionRules(voids_refused=holds))
    assert cluster.propose([2, 1]) == 0
    epoch = cluster.partition().partition_epoch
    cluster.heartbeat(3, want_fence=True)
    # The second copy arrives first. The leader continues without 3, whose log may end anywhere.
    assert cluster.propose([2, 1, 3], partition_epoch=epoch) == ErrorCode.INELIGIBLE_REPLICA
    cluster.heartbeat(3)
    late = cluster.propose([2, 1, 3], partition_epoch=epoch)
    assert late == (ErrorCode.INVALID_UPDATE_VERSION if holds else ErrorCode.NONE)
    assert cluster.partition().isr == ((2, 1) if holds else (2, 1, 3))
    assert cluster.propose([2, 1, 3]) == 0, "a live replica may join again"


def test_a_proposal_from_before_a_change_does_not_undo_it(holds: bool) -> None:
    cluster = three(ElectionRules(compares_partition_epoch=holds))
    before = cluster.partition().partition_epoch
    assert cluster.propose([2, 1]) == 0
    # Records were committed without 3, so a proposal from before does not count.
    late = cluster.propose([2, 3], partition_epoch=before)
    assert late == (ErrorCode.INVALID_UPDATE_VERSION if holds else ErrorCode.NONE)
    assert cluster.partition().isr == ((2, 1) if holds else (2, 3))


def test_fetches_of_an_earlier_process_add_no_replica(holds: bool) -> None:
    cluster = three(ElectionRules(compares_broker_epoch=holds))
    fetched_as = cluster.metadata.brokers[3].epoch
    cluster.start(3)
    assert cluster.partition().isr == (2, 1)
    code = cluster.propose([2, 1, 3], epochs={3: fetched_as})
    assert code == (ErrorCode.INELIGIBLE_REPLICA if holds else ErrorCode.NONE)


def test_a_restarted_leader_leads_in_a_new_epoch(holds: bool) -> None:
    cluster = three(ElectionRules(raises_leader_epoch=holds))
    cluster.create("alone", replicas=[[2]])
    cluster.start(2)
    now = cluster.partition("alone")
    assert now.leader == 2
    # In its old epoch it could write other records at offsets that it had served and lost.
    assert now.leader_epoch == (2 if holds else 0)


def test_damage_in_a_repeated_registration_counts(holds: bool) -> None:
    cluster = three(ElectionRules(hears_damage_again=holds))
    cluster.silence(1)
    cluster.register(2)
    assert (cluster.partition().isr, cluster.partition().elr) == ((3,), (2,))
    # The response was lost, and the broker has found damage since.
    cluster.register(2, damaged={cluster.topic_id("t"): [0]}, again=True)
    assert cluster.partition().elr == (() if holds else (2,))


def test_the_last_in_sync_replica_leads_when_it_returns(holds: bool) -> None:
    cluster = three(ElectionRules(keeps_last_in_sync=holds))
    cluster.create("one", replicas=[[2, 1]], configs={"min.insync.replicas": "1"})
    cluster.silence(1)
    cluster.silence(2)
    assert cluster.partition("one").isr == ((2,) if holds else ())
    cluster.start(2)
    assert cluster.partition("one").leader == 2, "without the rule it leads as an eligible replica"


def test_an_empty_disk_does_not_lead_while_another_replica_may_return(holds: bool) -> None:
    cluster = three(ElectionRules(spares_empty=holds))
    cluster.create("u", replicas=[[1, 2]], configs={"unclean.leader.election.enable": "true"})
    cluster.silence(2)
    cluster.silence(1)
    cluster.register(2)  # It lacks the records that only 1 wrote.
    cluster.start(1, directory=1)
    # If the empty disk led, 2 would truncate all its records.
    assert cluster.partition("u").leader == (NO_LEADER if holds else 1)
    cluster.heartbeat(2)
    assert cluster.partition("u").leader == (2 if holds else 1)


def test_an_operator_may_elect_an_empty_disk(holds: bool) -> None:
    cluster = three(ElectionRules(spares_empty=holds))
    cluster.create("u", replicas=[[1, 2]])
    cluster.silence(2)
    cluster.silence(1)
    cluster.start(1, directory=1)
    assert cluster.partition("u").leader == NO_LEADER
    assert cluster.elect_unclean("u") == 0
    assert cluster.partition("u").leader == 1


def test_a_replica_killed_before_its_sync_is_not_elected(holds: bool) -> None:
    cluster = three(ElectionRules(suspects_killed=holds), flush="os")
    cluster.silence(1)
    cluster.silence(3)
    cluster.register(3)  # Not a clean stop: its last records may only have been in memory.
    assert cluster.partition().elr == (() if holds else (3,))
    cluster.heartbeat(3)
    cluster.silence(2)
    assert cluster.partition().leader == (NO_LEADER if holds else 3)
