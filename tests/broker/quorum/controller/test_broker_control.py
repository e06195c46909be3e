"""Brokers register, send heartbeats, fall silent and leave."""

from __future__ import annotations

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.quorum.metadata.registrations import NO_LEADER
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from streamlog.replace import replace
from tests.broker.quorum.deciding import Deciding


@pytest.fixture
def three() -> Deciding:
    cluster = Deciding()
    cluster.start(1, 2, 3)
    return cluster


def test_a_broker_is_fenced_until_it_has_applied_its_registration() -> None:
    cluster = Deciding()
    epoch = cluster.register(1).broker_epoch
    assert epoch == cluster.metadata.offset
    early = cluster.heartbeat(1, offset=epoch - 1)
    assert (early.is_fenced, early.is_caught_up) == (True, False)
    late = cluster.heartbeat(1, offset=epoch)
    assert (late.is_fenced, late.is_caught_up) == (False, True)


def test_a_repeated_registration_keeps_its_epoch() -> None:
    cluster = Deciding()
    first = cluster.register(1)
    cluster.incarnations[1] -= 1
    written = len(cluster.log)
    assert cluster.register(1).broker_epoch == first.broker_epoch
    assert len(cluster.log) == written


def test_a_broker_of_another_cluster_is_refused() -> None:
    cluster = Deciding()
    answer = cluster.register(1, cluster_id="other")
    assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert cluster.metadata.brokers == {}


def test_a_broker_id_in_use_is_refused_until_its_session_expires(three: Deciding) -> None:
    taken = three.register(1, directory=1)
    assert taken.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    three.silence(1)
    assert three.register(1, directory=1).error_code == 0


def test_a_restart_on_its_own_directory_registers_at_once(three: Deciding) -> None:
    before = three.metadata.brokers[1].epoch
    assert three.register(1).broker_epoch > before


def test_a_silent_broker_is_fenced_and_others_take_over(three: Deciding) -> None:
    three.create(replicas=[[1, 2, 3]])
    three.silence(1)
    partition = three.partition()
    assert three.metadata.brokers[1].is_fenced
    assert (partition.leader, partition.leader_epoch) == (2, 1)
    assert partition.isr == (2, 3)


def test_silent_brokers_are_fenced_one_by_one(three: Deciding) -> None:
    three.create(replicas=[[1, 2, 3]])
    three.now_ms += three.realm.cluster.session_timeout_ms + 1
    for left in (2, 1, 0):
        three.commit(three.controller.on_tick(three.now_ms))
        assert sum(not each.is_fenced for each in three.metadata.brokers.values()) == left
    partition = three.partition()
    assert partition.leader == NO_LEADER
    assert partition.isr == (3,)
    assert three.controller.on_tick(three.now_ms) is None


def test_a_new_controller_waits_a_whole_session_before_fencing(three: Deciding) -> None:
    three.now_ms += three.realm.cluster.session_timeout_ms
    three.take_over()
    assert three.tick(three.realm.cluster.session_timeout_ms) == []
    assert three.controller.next_deadline_ms() == three.now_ms + 1
    assert three.tick(1) != []


def test_a_heartbeat_of_an_earlier_process_is_stale(three: Deciding) -> None:
    old = three.metadata.brokers[1].epoch
    three.register(1)
    assert three.heartbeat(1, epoch=old).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert three.heartbeat(9).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_restart_raises_the_epoch_of_every_led_partition(three: Deciding) -> None:
    three.create(replicas=[[1], [2]])
    three.create("u", replicas=[[1, 2]])
    three.start(1)
    assert (three.partition("t", 0).leader, three.partition("t", 0).leader_epoch) == (1, 2)
    assert three.partition("t", 1).leader_epoch == 0
    assert (three.partition("u", 0).leader, three.partition("u", 0).leader_epoch) == (2, 1)


def test_the_last_in_sync_replica_stays_in_sync_through_a_restart(three: Deciding) -> None:
    three.create(replicas=[[1, 2, 3]], configs={})
    three.silence(2)
    three.silence(3)
    three.register(1)
    assert three.partition().isr == (1,)
    assert three.partition().leader == NO_LEADER
    three.heartbeat(1)
    assert three.partition().leader == 1


def test_a_replica_on_a_new_directory_has_lost_everything(three: Deciding) -> None:
    three.create(replicas=[[1]])
    three.silence(1)
    three.start(1, directory=1)
    assert three.partition().isr == ()
    assert three.partition().leader == NO_LEADER
    # The metadata still names the disk that had everything, until a replica is in sync again.
    assert three.partition().directory(1) != three.realm.directory(1)
    three.start(1, directory=1)
    assert three.partition().leader == NO_LEADER
    three.elect_unclean()
    assert (three.partition().leader, three.partition().isr) == (1, (1,))
    assert three.partition().directory(1) == three.realm.directory(1)


def test_a_replica_on_a_new_directory_rejoins_by_its_leader_s_proposal(three: Deciding) -> None:
    three.create(replicas=[[1, 2, 3]])
    epoch = three.partition().leader_epoch
    three.silence(3)
    three.register(3, directory=1)
    assert three.partition().isr == (1, 2)
    three.heartbeat(3)
    assert three.partition().isr == (1, 2)
    assert three.propose([1, 2, 3]) == 0
    assert three.partition().directory(3) == three.realm.directory(3)
    # A disk is lost and replaced before the session of its broker has expired.
    three.realm.node_id = 3  # The controller's own broker: its earlier process is dead.
    three.register(3, directory=2)
    assert three.partition().isr == (1, 2)
    assert three.partition().leader_epoch > epoch, "what the old disk had fetched is void"


def test_without_a_directory_in_the_partition_the_last_registration_counts(
    three: Deciding,
) -> None:
    three.create(replicas=[[1, 2, 3]])
    topic_state = three.metadata.topic("t")
    assert topic_state is not None
    topic_state.partitions[0] = replace(topic_state.partitions[0], directories=())
    three.silence(3)
    three.start(3)
    assert three.propose([1, 2, 3]) == 0
    topic_state.partitions[0] = replace(
        topic_state.partitions[0], directories=(), isr=(3,), leader=3
    )
    three.silence(3)
    three.register(3, directory=1)
    assert three.partition().isr == ()


def test_a_restored_older_directory_has_lost_records(three: Deciding) -> None:
    three.create(replicas=[[1]])
    three.start(1, lives=[1])
    three.start(1, lives=[1, 2])
    assert three.partition().isr == (1,), "the process was killed, and has kept its disk"
    three.start(1, lives=[2, 3])  # Life 2 is known to have registered; so is 3 now.
    three.start(1, lives=[2, 3, 4])
    assert three.partition().isr == (1,), "the answer to its registration was lost"
    three.register(1, lives=[2, 5])
    assert three.partition().isr == (), "a copy was put back that was made in life 2"
    three.start(1, lives=[5, 6])
    assert three.partition().leader == NO_LEADER, "the next start changes nothing"


def test_a_registration_without_lives_is_not_compared(three: Deciding) -> None:
    three.create(replicas=[[1]])
    three.start(1, lives=[1])
    three.start(1)
    three.start(1, lives=[7])
    assert three.partition().leader == 1


def test_a_new_directory_leaves_the_other_eligible_replicas(three: Deciding) -> None:
    three.create(replicas=[[1, 2, 3]])
    three.silence(1)
    three.silence(2)  # Only 3 is in sync; 2 was when commits needed two.
    assert (three.partition().isr, three.partition().elr) == ((3,), (2,))
    three.silence(3)
    three.start(3, directory=1)
    assert three.partition().leader == NO_LEADER
    assert (three.partition().isr, three.partition().elr) == ((), (2,))
    three.start(2, previous_epoch=three.metadata.brokers[2].epoch)
    assert (three.partition().leader, three.partition().isr) == (2, (2,))


@pytest.mark.parametrize(("flush", "eligible"), [("always", (2,)), ("os", ())])
def test_a_killed_replica_is_eligible_only_with_flush_always(
    flush: str, eligible: tuple[int, ...]
) -> None:
    three = Deciding(config=BrokerConfig(flush=flush))
    three.start(1, 2, 3)
    three.create(replicas=[[1, 2, 3]])
    three.silence(1)
    three.silence(2)
    three.register(2)
    assert (three.partition().isr, three.partition().elr) == ((3,), eligible)


def test_a_damaged_replica_leaves_the_isr_even_if_no_leader_is_left(three: Deciding) -> None:
    alone = three.create("u", replicas=[[1]])
    topic = three.create(replicas=[[1, 2]])
    three.heartbeat(1, damaged={topic: [0], alone: [0]})
    assert (three.partition("u").isr, three.partition("u").leader) == ((), NO_LEADER)
    assert (three.partition().isr, three.partition().leader) == ((2,), 2)
    three.register(2, damaged={topic: [0]})
    assert (three.partition().isr, three.partition().leader) == ((), NO_LEADER)


def test_a_damage_report_raises_the_leader_epoch(
    three: Deciding,
) -> None:
    topic = three.create(replicas=[[1, 2, 3]])
    before = three.partition().leader_epoch
    three.heartbeat(2, damaged={topic: [0]})
    assert (three.partition().isr, three.partition().leader) == ((1, 3), 1)
    assert three.partition().leader_epoch == before + 1
    three.heartbeat(2, damaged={topic: [0]})  # Even out of sync: the leader may be about to add it.
    assert three.partition().leader_epoch == before + 2


def test_a_repeated_damage_report_does_not_remove_a_recovered_replica(three: Deciding) -> None:
    topic = three.create(replicas=[[1, 2, 3]])
    found_in = three.partition().leader_epoch
    three.heartbeat(2, damaged={topic: [0]})
    assert three.propose([1, 2, 3]) == 0
    three.heartbeat(2, damaged={topic: [0]}, damaged_in=found_in)
    assert three.partition().isr == (1, 2, 3)
    three.heartbeat(2, want_fence=True, damaged={topic: [0]}, damaged_in=found_in)
    assert three.partition().isr == (1, 3)


def test_damage_found_while_a_registration_is_unanswered_counts(three: Deciding) -> None:
    topic = three.create(replicas=[[1, 2, 3]])
    three.silence(1)
    three.register(2)
    assert (three.partition().isr, three.partition().elr) == ((3,), (2,))
    answer = three.register(2, damaged={topic: [0]}, again=True)
    assert answer.broker_epoch == three.metadata.brokers[2].epoch
    assert (three.partition().isr, three.partition().elr) == ((3,), ())


def test_damage_in_a_late_copy_of_a_registration_is_ignored(three: Deciding) -> None:
    topic = three.create(replicas=[[1, 2, 3]])
    three.register(2, damaged={topic: [0]})
    three.heartbeat(2)
    assert three.propose([1, 2, 3]) == 0
    three.register(2, damaged={topic: [0]}, again=True)
    assert three.partition().isr == (1, 2, 3)


def test_damage_is_accepted_from_a_broker_that_shuts_down(three: Deciding) -> None:
    topic = three.create(replicas=[[1, 2, 3]])
    three.silence(1)
    three.heartbeat(2, want_shut_down=True)
    assert (three.partition().isr, three.partition().elr) == ((3,), (2,))
    three.heartbeat(2, want_shut_down=True, damaged={topic: [0]})
    assert (three.partition().isr, three.partition().elr) == ((3,), ())


def test_a_controlled_shutdown_moves_leadership_and_waits_for_all_brokers(
    three: Deciding,
) -> None:
    three.create(replicas=[[1, 2, 3], [2, 1, 3]])
    asked = three.heartbeat(1, want_shut_down=True)
    assert three.partition("t", 0).leader == 2
    assert three.partition("t", 0).isr == (2, 3)
    assert not asked.should_shut_down
    three.heartbeat(2)
    assert not three.heartbeat(1, want_shut_down=True).should_shut_down
    three.heartbeat(3)
    assert three.heartbeat(1, want_shut_down=True).should_shut_down
    three.silence(1)
    three.start(1, previous_epoch=three.metadata.brokers[1].epoch)
    assert three.metadata.brokers[1].is_active


def test_a_single_broker_may_shut_down_at_once() -> None:
    cluster = Deciding()
    cluster.start(1)
    cluster.create(replicas=[[1]])
    assert cluster.heartbeat(1, want_shut_down=True).should_shut_down
    assert (cluster.partition().leader, cluster.partition().isr) == (NO_LEADER, (1,))
    cluster.start(1, previous_epoch=cluster.metadata.brokers[1].epoch)
    assert cluster.partition().leader == 1


def test_a_broker_can_ask_to_be_fenced(three: Deciding) -> None:
    three.create(replicas=[[1, 2]])
    assert three.heartbeat(1, want_fence=True).is_fenced
    assert three.partition().leader == 2
    assert three.heartbeat(1, want_fence=True).is_fenced
    assert not three.heartbeat(1).is_fenced


def test_of_two_brokers_that_ask_to_be_fenced_one_is_still_needed(three: Deciding) -> None:
    """Their disks became full at once, and neither knew about the other."""
    three.create(replicas=[[1, 2]])
    assert not any(three.partition().needs(each) for each in (1, 2, 3))
    three.heartbeat(1, want_fence=True)
    three.heartbeat(2, want_fence=True)
    assert three.partition().leader == NO_LEADER
    assert [each for each in (1, 2, 3) if three.partition().needs(each)] == [2]
    three.heartbeat(1, want_fence=True)
    three.heartbeat(2)
    assert three.partition().leader == 2
    assert three.partition().needs(2)


def test_an_unregistered_broker_leaves_all_isrs(three: Deciding) -> None:
    three.create(replicas=[[1, 2]])
    answer = three.ask(UnregisterBrokerRequest(broker_id=1), UnregisterBrokerResponse)
    assert answer.error_code == 0
    assert 1 not in three.metadata.brokers
    assert (three.partition().leader, three.partition().isr) == (2, (2,))
    again = three.ask(UnregisterBrokerRequest(broker_id=1), UnregisterBrokerResponse)
    assert again.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_controllers_own_broker_registers_without_waiting() -> None:
    alone = Deciding(node_id=1)
    alone.start(1)
    alone.take_over()
    assert alone.register(1, directory=1).error_code == 0


def test_a_failed_disk_costs_the_place_in_sync_and_the_last_replica_waits_for_it() -> None:
    cluster = Deciding()
    cluster.start(1, 2)
    shared = cluster.create("shared", replicas=[[1, 2]])
    alone = cluster.create("alone", replicas=[[1]])

    def state(topic_id: bytes) -> tuple[int, tuple[int, ...]]:
        partition = cluster.metadata.topics[topic_id].partitions[0]
        return partition.leader, partition.isr

    both = {shared: [0], alone: [0]}
    cluster.heartbeat(1, offline=both)
    assert (state(shared), state(alone)) == ((2, (2,)), (-1, (1,)))
    # Other decisions, and a later heartbeat, do not elect it.
    cluster.start(3)
    cluster.heartbeat(1)
    assert (state(shared), state(alone)) == ((2, (2,)), (-1, (1,)))
    # It starts again with the disk.
    cluster.start(1)
    assert state(alone) == (1, (1,))


def test_a_replaced_disk_does_not_lead_as_the_failed_one_did() -> None:
    cluster = Deciding()
    cluster.start(1)
    topic_id = cluster.create("t", replicas=[[1]])
    cluster.heartbeat(1, offline={topic_id: [0]})
    cluster.start(1, damaged={topic_id: [0]})
    partition = cluster.metadata.topics[topic_id].partitions[0]
    assert (partition.leader, partition.isr) == (-1, ())
