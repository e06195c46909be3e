"""Planted: what a log of this kind can get wrong, and what of ours finds each of them.

A simulator that finds nothing proves nothing, unless it finds these. `SWITCHES` are faults that can
be planted: by a flag of the shipped machines' rules, or of what stands around them; `SHORT_CUTS`
are what has been got wrong elsewhere, and which test would tell. A test of ours holds both against
the rules there are, the seeds and the tests; `python -m simulation.planted` prints the tables that
are in docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple


class Switch(NamedTuple):
    """A fault that can be planted."""

    level: str
    """Whose rules have it."""
    names: tuple[str, ...]
    """The flags that plant it, all together."""
    seed: int | None
    """The first life that finds it, of a search from seed 0; None: random lives do not."""
    test: str = ""
    """The directed test that shows it."""


def _isr(seed: int | None, *names: str, test: str = "") -> Switch:
    return Switch("isr", names, seed, test and f"tests/broker/replication/{test}")


def _raft(name: str, seed: int | None, test: str = "") -> Switch:
    return Switch(
        "raft", (name,), seed, test and f"tests/broker/quorum/raft/test_raft_machine.py::{test}"
    )


def _controller(name: str, seed: int | None, test: str = "") -> Switch:
    place = f"tests/broker/quorum/test_planted.py::{test}"
    return Switch("controller", (name,), seed, test and place)


def _mirror(seed: int | None, name: str, test: str = "") -> Switch:
    place = f"tests/broker/replication/{test}"
    return Switch("mirror", (name,), seed, test and place)


SWITCHES: Final = (
    _isr(0, "commits_on_append"),
    _isr(23, "truncates_to_high_watermark"),
    _isr(2, "compares_ends_only"),
    _isr(2, "skips_divergence_check"),
    _isr(0, "fetches_before_flush"),
    _isr(0, "shrinks_at_once"),
    _isr(16, "forgets_pending_isr"),
    _isr(
        None,
        "joins_before_epoch_start",
        test="test_leader_replica.py::test_a_replica_below_the_epoch_start_does_not_join_the_isr",
    ),
    _isr(63, "repeats_fetch_ids"),
    _isr(
        None,
        "takes_old_metadata",
        test="test_replica.py::test_metadata_older_than_the_registration_is_ignored",
    ),
    _isr(0, "ignores_min_insync_in_commits", "ignores_min_insync_in_answers"),
    _isr(
        None,
        "ignores_min_insync_in_commits",
        test="test_leader_replica.py::test_too_few_in_sync_replicas_commit_nothing",
    ),
    _isr(
        None,
        "ignores_min_insync_in_answers",
        test="test_leader_replica.py::test_too_few_in_sync_replicas_after_an_append_refuse_it",
    ),
    _isr(
        None,
        "ignores_leader_epochs",
        test="test_leader_replica.py::test_a_late_fetch_of_an_earlier_epoch_is_fenced",
    ),
    _isr(
        None,
        "ignores_generations",
        test="test_replica.py::test_a_sync_that_began_before_a_truncation_is_ignored",
    ),
    _isr(
        None,
        "ignores_broker_epochs",
        "accepts_old_broker_epochs",
        test="test_leader_replica.py::test_a_fetch_of_an_earlier_broker_epoch_is_refused",
    ),
    _isr(197, "ignores_broker_epochs", "accepts_old_broker_epochs", "strict"),
    _isr(197, "strict"),
    _isr(1, "elects_anybody"),
    _isr(16, "accepts_old_partition_epochs"),
    _isr(931, "accepts_late_proposals"),
    Switch(
        "isr",
        ("keeps_unclean_in_sync",),
        None,
        "tests/broker/quorum/test_planted.py::test_a_replica_killed_before_its_sync_is_not_elected",
    ),
    _isr(0, "appends_duplicates"),
    _isr(1, "forgets_producers"),
    _isr(0, "answers_duplicates_at_once"),
    _mirror(1, "ignores_topic_ids"),
    _mirror(2, "raises_no_epoch"),
    _mirror(6, "cuts_in_own_epoch"),
    _mirror(6, "appends_after_promotion"),
    _mirror(0, "takes_source_mark"),
    _mirror(0, "serves_uncommitted"),
    _mirror(36, "continues_era"),
    _mirror(2, "promotes_at_lag_zero"),
    _mirror(3, "begins_anew_in_company"),
    _mirror(6, "cuts_without_file"),
    _mirror(3, "copies_positions_beyond_end"),
    _mirror(44, "ignores_attempts"),
    _mirror(361, "compares_marks"),
    _mirror(97, "seals_without_epoch"),
    _mirror(
        None,
        "cuts_below_era",
        "test_mirror_reader.py::test_records_from_before_the_source_led_are_never_cut",
    ),
    _mirror(
        None,
        "keeps_progress_at_cut",
        "test_leader_replica.py::test_followers_of_a_mirror_count_anew_after_a_cut",
    ),
    _raft("vote_not_persisted", 9),
    _raft("no_log_check", 0),
    _raft("count_unflushed", 2),
    _raft("fetch_before_flush", 0),
    _raft("no_divergence_check", 0),
    _raft("accept_any_answer", 0),
    _raft("rejoin_at_once", 11),
    _raft("commit_old_epoch", None, "test_entries_of_earlier_epochs_are_not_committed_by_count"),
    _raft("no_begin_fence", None, "test_without_the_fence_a_leader_of_an_older_epoch_stays"),
    _raft("trust_leader_hint", None, "test_a_leader_hint_about_a_third_node_is_not_trusted"),
    _raft("lets_anybody_in", None, "test_a_node_that_is_not_a_voter_cannot_rejoin"),
    _raft("no_flush_generation", None, "test_a_sync_begun_before_a_truncation_does_not_count"),
    _controller("elects_in_sync", 1),
    _controller("clears_elr", 0),
    _controller("loses_with_directory", 19),
    _controller("compares_lives", 2351),
    _controller("forgets_leavers", 705),
    _controller("forgets_damaged", 1765),
    _controller("compares_damage_epoch", 10309),
    _controller("keeps_last_in_sync", None, "test_the_last_in_sync_replica_leads_when_it_returns"),
    _controller("raises_leader_epoch", None, "test_a_restarted_leader_leads_in_a_new_epoch"),
    _controller(
        "compares_partition_epoch", None, "test_a_proposal_from_before_a_change_does_not_undo_it"
    ),
    _controller("compares_broker_epoch", None, "test_fetches_of_an_earlier_process_add_no_replica"),
    _controller("hears_damage_again", None, "test_damage_in_a_repeated_registration_counts"),
    _controller("voids_refused", None, "test_a_late_copy_of_a_refused_proposal_adds_no_replica"),
    _controller("suspects_killed", None, "test_a_replica_killed_before_its_sync_is_not_elected"),
    _controller(
        "spares_empty", None, "test_an_empty_disk_does_not_lead_while_another_replica_may_return"
    ),
    Switch(
        "status",
        ("wants_reports",),
        None,
        "tests/simulation/test_controller.py"
        "::test_an_operator_who_trusts_only_the_metadata_loses_records",
    ),
    Switch(
        "coordinator",
        ("tells_from_memory",),
        None,
        "tests/simulation/test_replaced_coordinators.py::test_a_coordinator_that_answers_from_memory_is_found",
    ),
    Switch(
        "transactions",
        ("keeps_epoch",),
        None,
        "tests/broker/coordinator/transaction/test_raised_epochs.py"
        "::test_a_coordinator_that_keeps_the_epoch_is_found",
    ),
)

BROKER: Final = "tests/broker/"
STORAGE: Final = "tests/broker/storage/"
GROUPS: Final = "tests/broker/coordinator/"
WORKERS: Final = "tests/worker/"
MEMBERS: Final = "tests/client/group/test_classic_protocol.py"
REPLICAS: Final = "tests/broker/replication/test_replicas.py::"
GROUP_FLUSH: Final = "tests/broker/replication/test_group_flush.py::"
QUORUM: Final = "tests/broker/quorum/"
CONNECT: Final = "tests/simulation/test_connect.py::"
WHOLE: Final = "tests/simulation/test_broker.py::"
LOG: Final = STORAGE + "test_partition_log.py::"
RECOVERY: Final = STORAGE + "test_recovery.py::"
PRODUCERS: Final = STORAGE + "test_producers.py::"
CLEANING: Final = STORAGE + "test_cleaning.py::"
DIRECTORY: Final = STORAGE + "test_log_directory.py::"
MEMBER: Final = QUORUM + "test_member.py::"

SHORT_CUTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "an acknowledgement before the sync that it stands for",
        (
            WHOLE + "test_an_acknowledgement_before_the_sync_is_found",
            "tests/chaos/test_chaos.py::test_an_acknowledgement_waits_for_its_sync",
        ),
    ),
    ("a sync that does nothing", (WHOLE + "test_a_sync_without_effect_is_found",)),
    (
        "files that are synced while their directory is not",
        (DIRECTORY + "test_flushed_records_survive_a_power_cut",),
    ),
    (
        "a disk that blocks the event loop",
        (STORAGE + "test_rolls.py::test_a_roll_waits_for_no_sync_and_the_next_sync_covers_it",),
    ),
    (
        "a short write, or a full disk, and half a batch is built on",
        (
            "tests/broker/storage/log/test_partition_log.py::test_short_writes_are_continued",
            "tests/broker/storage/log/test_partition_log.py::test_a_full_disk_loses_no_acknowledged_record",
        ),
    ),
    (
        "a failed sync that is retried",
        (
            GROUP_FLUSH + "test_a_failed_sync_is_not_repeated_and_fails_the_directory",
            RECOVERY + "test_a_restart_after_a_failed_sync_makes_the_records_durable",
        ),
    ),
    (
        "a log cut off at the first bad checksum",
        (RECOVERY + "test_damage_in_the_middle_costs_one_batch",),
    ),
    (
        "checksums that are never verified",
        (
            "tests/broker/storage/test_validator.py::test_a_batch_with_a_wrong_checksum_is_refused",
            RECOVERY + "test_a_flipped_byte_yields_no_wrong_record",
        ),
    ),
    (
        "acks=all that does not wait for the disks of followers",
        (REPLICAS + "test_acks_all_waits_for_the_disks_of_the_followers",),
    ),
    (
        "acks=all that is acks=1 where one is in sync",
        (REPLICAS + "test_too_few_in_sync_replicas_refuse_acks_all",),
    ),
    (
        "an in-sync set that never shrinks",
        (REPLICAS + "test_a_lagging_replica_leaves_the_isr_and_rejoins",),
    ),
    (
        "a leader that stays leader without a majority",
        (
            "tests/broker/quorum/raft/test_raft_machine.py::test_a_leader_without_fetches_of_a_majority_resigns",
            REPLICAS + "test_an_old_leader_truncates_what_it_alone_had",
        ),
    ),
    (
        "no leader epochs, or epochs that restart",
        (
            "tests/broker/apis/test_fetch.py::test_offset_for_leader_epoch_returns_an_epoch_s_end",
            "tests/broker/storage/log/test_leader_epochs.py::test_an_unclean_start_begins_an_epoch_with_its_first_batch",
        ),
    ),
    (
        "a cluster that depends on one node",
        (
            MEMBER + "test_another_voter_leads_after_the_leader_is_killed",
            MEMBER + "test_a_leader_without_a_majority_commits_nothing",
        ),
    ),
    (
        "producer states kept only in memory",
        (
            WHOLE + "test_a_broker_that_accepts_duplicates_is_found",
            "tests/broker/storage/log/test_partition_log.py::test_producer_state_survives_a_restart",
            "tests/broker/storage/log/test_producer_states.py::test_a_snapshot_restores_the_producer_states",
        ),
    ),
    (
        "sequence numbers that are not checked",
        (
            "tests/broker/storage/log/test_producer_states.py::test_a_gap_in_sequence_numbers_is_refused",
            "tests/broker/storage/log/test_producer_states.py::test_sequence_numbers_wrap_to_zero",
        ),
    ),
    (
        "transactions kept only in memory",
        (BROKER + "test_isolation.py::test_an_open_transaction_survives_a_restart",),
    ),
    (
        "transaction markers that are not retried",
        (
            "tests/broker/coordinator/transaction/test_marker_queue.py::test_every_marker_is_written_and_never_sent_twice_at_once",
            BROKER + "test_transactions.py::test_a_prepared_commit_completes_after_a_restart",
        ),
    ),
    (
        "a last stable offset that is the high watermark",
        (BROKER + "test_isolation.py::test_an_open_transaction_bounds_the_last_stable_offset",),
    ),
    (
        "a late request of a transaction that has ended counts for the next",
        (
            BROKER + "test_late_requests.py"
            "::test_a_commit_by_the_older_connection_does_not_end_the_next_transaction",
            BROKER + "test_transactions_v2.py"
            "::test_a_late_record_joins_no_transaction_wherever_it_arrives",
        ),
    ),
    (
        "groups in memory",
        (
            GROUPS + "test_histories.py"
            "::test_no_acknowledged_commit_is_lost_and_every_group_recovers",
        ),
    ),
    (
        "a removed member that commits",
        (
            "tests/broker/coordinator/group/test_classic_group.py::test_a_wrong_generation_or_member_is_refused",
            "tests/broker/coordinator/group/test_consumer_group.py::test_a_wrong_member_epoch_is_fenced",
        ),
    ),
    (
        "a worker that opens a task late takes it from its owner",
        (
            WORKERS + "commit/test_exactly_once.py"
            "::test_a_worker_that_opens_its_tasks_late_disturbs_no_owner",
            WORKERS + "test_late_records.py"
            "::test_a_worker_that_opens_late_changes_nothing_exactly_once",
        ),
    ),
    (
        "a session that counts from when an answer is read",
        (MEMBERS + "::test_a_silent_member_is_not_current_until_the_coordinator_answers",),
    ),
    (
        "a sink's target that lets an earlier owner commit",
        (CONNECT + "test_a_table_without_epochs_is_found",),
    ),
    (
        "a file that is written before its range is in the log",
        (CONNECT + "test_a_range_after_the_commit_of_the_target_is_found",),
    ),
    (
        "source offsets outside of the transaction of their records",
        (CONNECT + "test_offsets_outside_of_the_transaction_are_found",),
    ),
    (
        "a dealing that counts before a round of the group says so",
        (CONNECT + "test_a_dealing_without_a_round_is_found",),
    ),
    (
        "compaction by time, of tombstones at once, of open transactions",
        (
            "tests/broker/storage/compaction/test_cleaning.py::test_a_reader_sees_the_last_value_of_every_key",
            "tests/broker/storage/compaction/test_cleaning.py::test_a_tombstone_stays_for_delete_retention_ms",
            "tests/broker/storage/compaction/test_cleaning.py::test_compaction_stops_at_an_open_transaction",
        ),
    ),
    (
        "a compaction that can't be interrupted",
        (
            BROKER + "test_compaction.py::test_kills_during_compaction_lose_no_acknowledged_value",
            STORAGE + "test_interrupted_compaction.py"
            "::test_a_killed_compaction_is_found_and_repaired",
        ),
    ),
    (
        "retention that trusts any clock",
        (STORAGE + "test_expiry.py::test_a_clock_that_leaps_forward_is_trusted_after_an_hour",),
    ),
    (
        "API versions that are advertised and not served",
        (BROKER + "test_broker.py::test_an_empty_request_of_every_version_is_answered",),
    ),
    (
        "a position that is out of range after a failover",
        (REPLICAS + "test_the_end_offset_waits_until_earlier_commits_are_known",),
    ),
    (
        "memory without a bound",
        (
            "tests/broker/server/test_request_memory.py::test_many_slow_writers_stay_within_the_bound",
        ),
    ),
    (
        "an unclean election without permission",
        (
            QUORUM + "controller/test_leader_elections.py"
            "::test_an_unclean_election_needs_permission",
        ),
    ),
    (
        "leaders that never return to the preferred replica",
        (
            QUORUM + "controller/test_partition_control.py"
            "::test_preferred_leaders_return_automatically_after_a_while",
        ),
    ),
    (
        "a replaced disk that counts as in sync by the old one",
        (
            "tests/client/admin/test_cluster_descriptions.py::test_each_gap_in_the_evidence_is_a_problem",
            "tests/chaos/test_procedures.py::test_a_procedure_loses_no_acknowledged_record",
            QUORUM
            + "controller/test_broker_control.py"
            + "::test_a_replica_on_a_new_directory_rejoins_by_its_leader_s_proposal",
        ),
    ),
    (
        "a backup that is put back and counts like the disk it was made of",
        (
            QUORUM
            + "controller/test_broker_control.py"
            + "::test_a_restored_older_directory_has_lost_records",
        ),
    ),
    (
        "a data directory of another node or cluster",
        (
            DIRECTORY + "test_the_directory_of_another_node_is_refused_and_unlocked",
            "tests/broker/quorum/controller/test_broker_control.py::test_a_broker_of_another_cluster_is_refused",
            QUORUM + "controller/test_broker_control.py"
            "::test_a_broker_id_in_use_is_refused_until_its_session_expires",
        ),
    ),
    (
        "a simulation of a copy of the machines",
        ("tests/simulation/test_coverage.py::test_lives_run_the_shipped_machines",),
    ),
    (
        "checkers that count, and do not compare",
        ("tests/simulation/test_checkers.py::test_a_corrupted_history_is_reported",),
    ),
)


def tables() -> Iterator[str]:
    """Both, line by line."""
    yield "| Rules of | Planted by | Found by |"
    yield "| --- | --- | --- |"
    for switch in SWITCHES:
        flags = ", ".join(f"`{name}`" for name in switch.names)
        yield f"| {switch.level} | {flags} | {_found(switch)} |"
    yield ""
    yield "| Short cut | Found by |"
    yield "| --- | --- |"
    for what, tests in SHORT_CUTS:
        yield f"| {what} | {_told(tests)} |"


def _found(switch: Switch) -> str:
    tests = _told([switch.test]) if switch.test else ""
    if switch.seed is None:
        return tests
    life = f"life {switch.seed}"
    return f"{life}; {tests}" if tests else life


def _told(tests: Iterable[str]) -> str:
    return ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)


if __name__ == "__main__":
    print(*tables(), sep="\n")
