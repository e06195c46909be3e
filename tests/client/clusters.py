"""Other projects' brokers for the tests of our client, and the tests that they can't run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from conformance.mock import MockCluster
from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.classic_groups import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from streamlog.record import TopicPartition

EVERY_TEST = ""
NO_ADMIN = "it has no admin requests"
NO_TWO = (
    "its groups take a session to rebalance and refuse who syncs late: see conformance.mock.BEYOND"
)
ANY_TIME = "it takes any time-out"
FORGETS = "it forgets offsets that are committed with a transaction"
NO_ABORTS = "it does not name aborted transactions to readers"
ANY_SIZE = "it takes batches of any size"
APPENDED_AT_1234 = "it returns 1234 as the time of every append"

NO_LONG_POLL = "a record that arrives does not end a fetch that it holds back"
NOT_ON_MOCK: dict[str, dict[str, str]] = {
    "test_admin": {
        EVERY_TEST: NO_ADMIN,
    },
    "test_group_admin": {
        EVERY_TEST: NO_ADMIN,
    },
    "test_cluster_admin": {
        EVERY_TEST: NO_ADMIN,
    },
    "test_topic_admin": {
        EVERY_TEST: "publications are streamlog's own",
    },
    "test_transactional_publish": {
        EVERY_TEST: "its brokers forget offsets that are committed with a transaction",
    },
    "test_transaction_admin": {
        EVERY_TEST: NO_ADMIN,
    },
    "test_fetcher": {
        "test_partitions_that_are_added_or_moved_do_not_wait_for_a_fetch_that_is_held_back": (
            NO_LONG_POLL
        ),
        "test_random_moves_during_a_long_poll_lose_and_repeat_no_record": NO_LONG_POLL,
    },
    "test_consumer_commits": {
        "test_committed_metadata_and_leader_epoch_are_returned": "it keeps no leader epoch",
    },
    "test_consumer": {
        "test_reading_a_deleted_topic_raises_an_error": NO_ADMIN,
        "test_a_group_shares_partitions_and_reassigns_them": NO_TWO,
        "test_a_static_member_returns_without_a_rebalance": NO_TWO,
        "test_a_custom_assignor_is_used_and_a_mismatch_is_refused": NO_TWO,
        "test_a_cooperative_rebalance_revokes_only_moved_partitions": NO_TWO,
        "test_offsets_are_found_by_position_and_timestamp": "it looks up no timestamps",
        "test_subscribing_to_more_topics_rebalances": NO_TWO,
        "test_a_second_consumer_with_the_instance_id_fences_the_first": NO_TWO,
    },
    "test_consumer_protocol": {EVERY_TEST: NO_ADMIN},
    "test_consumer_control": {
        "test_an_unsubscribed_consumer_can_read_anything": NO_TWO,
        "test_closing_does_not_wait_forever_for_a_callback": NO_TWO,
    },
    "test_poll_interval": {
        "test_others_take_over_and_the_owner_learns_of_the_loss": NO_TWO,
    },
    "test_producer": {
        "test_a_batch_above_the_topic_limit_is_split": ANY_SIZE,
        "test_a_record_arrives_with_all_its_parts": APPENDED_AT_1234,
        "test_bulk_and_atomic_records_keep_their_order": APPENDED_AT_1234,
        "test_flush_ends_lingering_and_raises_failures": ANY_SIZE,
        "test_order_is_kept_with_many_small_requests": "it answers to acks=0, too",
        "test_records_for_a_deleted_topic_fail_with_its_name": NO_ADMIN,
    },
    "test_range_reader": {
        "test_read_range_returns_committed_records": NO_ABORTS,
        "test_a_range_whose_start_was_deleted_is_refused": NO_ADMIN,
    },
    "test_rebalance": {
        "test_a_pattern_follows_created_and_deleted_topics": NO_ADMIN,
        "test_a_pattern_without_matches_waits_for_topics": NO_ADMIN,
        "test_new_partitions_of_a_topic_cause_a_rebalance": NO_ADMIN,
    },
    "test_transactional_producer": {
        "test_a_lost_record_aborts_and_the_next_transaction_succeeds": ANY_SIZE,
        "test_a_refused_transaction_timeout_fails_the_opening": ANY_TIME,
        "test_a_transaction_block_counts_whole_or_not_at_all": NO_ABORTS,
        "test_offsets_are_committed_with_the_transaction": FORGETS,
        "test_offsets_of_a_replaced_member_abort_the_transaction": FORGETS,
        "test_an_older_producer_with_the_transactional_id_is_fenced": "it fences no producer",
        "test_a_stable_offset_lookup_waits_for_the_pending_transaction": FORGETS,
        "test_cancelling_a_transaction_aborts_it": NO_ABORTS,
        "test_each_transaction_has_an_epoch_of_its_own_where_the_cluster_gives_it": NO_ABORTS,
    },
}
"""What librdkafka's mock cluster does not do, by module and test.

`tests/conformance/test_mock.py` shows these differences with raw requests.
"""

AT_ONCE = "Kafka's brokers learn of the change from their controller a moment later"
FIXED = "Kafka reads num.partitions only at start"

NOT_ON_KAFKA: dict[str, dict[str, str]] = {
    "test_topic_admin": {
        EVERY_TEST: "publications are streamlog's own",
    },
    "test_admin": {
        "test_one_error_carries_all_refusals": AT_ONCE,
        "test_internal_topics_are_listed_on_request": "Kafka creates more of them over time",
        "test_list_settings_can_be_appended_to_and_subtracted_from": AT_ONCE,
        "test_client_quotas_are_altered_and_described_by_entity": AT_ONCE,
        "test_refusals_name_the_topic_and_other_topics_are_processed": AT_ONCE,
        "test_configs_are_described_and_altered": f"it expects our broker's defaults, and {FIXED}",
        "test_broker_settings_are_altered_for_one_broker_or_all": FIXED,
        "test_topics_are_created_described_and_deleted": AT_ONCE,
        "test_resources_with_settings_are_listed": "Kafka has topics and loggers of its own",
    },
    "test_consumer_protocol": {
        "test_a_member_of_the_other_protocol_is_refused": (
            "Kafka takes members of both kinds into one group: group.consumer.migration.policy"
        ),
    },
    "test_cluster_admin": {
        "test_describe_log_dirs_returns_the_size_of_each_partition": AT_ONCE,
    },
    "test_transaction_admin": {
        "test_transactions_are_listed_and_described": (
            "it expects only its own transactional ids, and Kafka keeps earlier ones for a week"
        ),
        "test_an_unknown_partition_or_producer_raises_an_error": (
            "Kafka answers a marker of an unknown epoch with UNKNOWN_SERVER_ERROR"
        ),
    },
}
"""What Apache Kafka does differently, by module and test."""


def reason(left_out: dict[str, dict[str, str]], module: str, test: str) -> str:
    """Return why a test does not run on that broker, or an empty string."""
    tests = left_out.get(module, {})
    return tests.get(EVERY_TEST) or tests.get(test, "")


@asynccontextmanager
async def mocked(**topics: int) -> AsyncIterator[Log]:
    """Open a log on three brokers of librdkafka's mock cluster."""
    with MockCluster(brokers=3) as cluster:
        for name, partitions in topics.items():
            cluster.make_topic(name, partitions, 3)
        async with Log.open(f"kafka://{cluster.address}") as log:
            yield log


@asynccontextmanager
async def emptied_kafka(address: str, topics: Mapping[str, int]) -> AsyncIterator[Log]:
    """Open a log on an Apache Kafka broker, without the data of earlier tests."""
    async with Log.open(f"kafka://{address}") as log, log.admin() as admin:
        for transaction in await admin.list_transactions(states=["Ongoing"]):
            await _abort(admin, transaction.transactional_id)
        old = [each.name for each in await admin.list_topics() if not each.name.startswith("__")]
        if old:
            await admin.delete_topics(old)
        for group in await admin.list_groups():
            await _forget(admin, group.group_id)
        for quota in await admin.describe_client_quotas():
            await admin.alter_client_quotas(quota.entity, dict.fromkeys(quota.rates))
        while {each.name for each in await admin.list_topics()} & set(old):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while await admin.describe_client_quotas():  # noqa: ASYNC110 - its broker hears of it later.
            await asyncio.sleep(0.05)
        new = [NewTopic(name, partitions) for name, partitions in topics.items()]
        if new:
            await admin.create_topics(new)
            wanted = {each.name for each in new}
            while not {each.name for each in await admin.list_topics()} >= wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            topic_partitions = [
                TopicPartition(each.name, n) for each in new for n in range(each.partitions)
            ]
            async with log.consumer() as consumer:
                await consumer.end_offsets(
                    topic_partitions
                )  # Tries until the partitions have leaders.
        yield log


async def _abort(admin: Admin, transactional_id: str) -> None:
    """Abort a transaction: its markers would reach a new topic with the old name."""

    async def attempt() -> None:
        node_id = await admin._cluster.coordinator(transactional_id, key_type=1)
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        found = await admin._cluster.call(node_id, request, InitProducerIdResponse)
        if found.error_code:
            raise error_for(found.error_code, f"transaction of {transactional_id}")

    await admin._cluster.retrying(attempt)


async def _forget(admin: Admin, group_id: str) -> None:
    """Delete a group; a static or lost member stays in it until its session ends."""
    while True:
        try:
            await admin.delete_groups([group_id])
        except LogError as error:
            if error.code != ErrorCode.NON_EMPTY_GROUP:
                raise
            await _remove_members(admin, group_id)
        else:
            return


async def _remove_members(admin: Admin, group_id: str) -> None:
    (found,) = await admin.describe_groups([group_id])
    members = [
        MemberIdentity(member_id=each.member_id, group_instance_id=each.instance_id)
        for each in found.members
    ]
    await admin._ask(
        group_id,
        LeaveGroupRequest(group_id=group_id, members=members),
        LeaveGroupResponse,
        lambda response: [response.error_code],
    )
