"""Brokers that others wrote, as places for the tests of our client, and what is left out there."""

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
FORGETS = "it forgets positions that are committed with a transaction, whoever does"
NO_ABORTS = "it does not name aborted transactions to readers"
ANY_SIZE = "it takes batches of any size"
APPENDED_AT_1234 = "it names 1234 as the time of every append"

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
        EVERY_TEST: "its brokers forget positions that are committed with a transaction",
    },
    "test_transaction_admin": {
        EVERY_TEST: NO_ADMIN,
    },
    "test_consumer_commits": {
        "test_what_is_committed_beside_the_offset_comes_back": "it keeps no leader epoch",
    },
    "test_consumer": {
        "test_a_deleted_topic_is_told": NO_ADMIN,
        "test_a_group_shares_hands_over_and_takes_back": NO_TWO,
        "test_a_static_member_is_back_without_a_rebalance": NO_TWO,
        "test_an_assignor_can_be_plugged_in_and_others_are_refused": NO_TWO,
        "test_in_a_cooperative_rebalance_only_what_moves_is_given_up": NO_TWO,
        "test_offsets_by_place_and_by_time": "it looks up no times",
        "test_subscribing_to_more_rebalances": NO_TWO,
        "test_two_consumers_of_one_instance": NO_TWO,
    },
    "test_consumer_protocol": {EVERY_TEST: NO_ADMIN},
    "test_consumer_control": {
        "test_after_unsubscribing_anything_can_be_read": NO_TWO,
        "test_closing_does_not_wait_for_ever_for_a_callback": NO_TWO,
    },
    "test_poll_interval": {
        "test_others_read_on_and_the_owner_hears_of_it": NO_TWO,
    },
    "test_producer": {
        "test_a_batch_larger_than_the_topic_takes_goes_in_parts": ANY_SIZE,
        "test_a_record_arrives_with_all_its_parts": APPENDED_AT_1234,
        "test_bulk_and_atomic_records_share_the_order": APPENDED_AT_1234,
        "test_flush_ends_the_lingering_and_tells_of_failures": ANY_SIZE,
        "test_order_is_kept_with_many_small_requests": "it answers to acks=0, too",
        "test_what_waits_for_a_topic_that_is_deleted_fails_with_its_name": NO_ADMIN,
    },
    "test_range_reader": {
        "test_a_log_reads_a_range_of_committed_records": NO_ABORTS,
        "test_a_range_whose_start_was_deleted_is_refused": NO_ADMIN,
    },
    "test_rebalance": {
        "test_a_pattern_finds_topics_that_come_and_lets_go_of_those_that_went": NO_ADMIN,
        "test_a_pattern_may_mean_nothing_yet": NO_ADMIN,
        "test_a_topic_that_grows_is_shared_out_anew": NO_ADMIN,
    },
    "test_transactional_producer": {
        "test_a_lost_record_aborts_and_is_named_and_the_next_one_goes_on": ANY_SIZE,
        "test_a_timeout_that_the_broker_does_not_take_is_told_at_the_opening": ANY_TIME,
        "test_all_in_a_block_counts_or_nothing": NO_ABORTS,
        "test_offsets_count_with_the_transaction": FORGETS,
        "test_offsets_of_a_member_that_was_replaced_abort_the_transaction": FORGETS,
        "test_the_older_of_two_producers_is_fenced": "it fences nobody",
        "test_who_asks_where_a_group_goes_on_waits_for_what_is_about_to_count": FORGETS,
        "test_who_is_cancelled_aborts": NO_ABORTS,
    },
}
"""By module and test: what librdkafka's mock cluster does not do. Where that comes from is seen in
raw requests by `tests/conformance/test_mock.py`."""

AT_ONCE = "it asks at once for what a broker of Kafka hears of a moment later, from its controller"
FIXED = "Kafka has num.partitions only when it starts"

NOT_ON_KAFKA: dict[str, dict[str, str]] = {
    "test_topic_admin": {
        EVERY_TEST: "publications are streamlog's own",
    },
    "test_admin": {
        "test_a_refusal_has_all_of_them": AT_ONCE,
        "test_internal_topics_are_listed_on_demand": "Kafka has more of them, by and by",
        "test_lists_grow_and_shrink": AT_ONCE,
        "test_quotas_of_one_entity": AT_ONCE,
        "test_refusals_name_the_topic_and_the_rest_is_done": AT_ONCE,
        "test_settings_are_shown_and_changed": f"it looks at our broker's defaults, and {FIXED}",
        "test_settings_of_one_broker_and_of_all": FIXED,
        "test_topics_come_and_go": AT_ONCE,
        "test_what_has_settings_is_listed": "Kafka has topics and loggers of its own",
    },
    "test_consumer_protocol": {
        "test_a_group_of_the_other_kind_is_told_apart": (
            "Kafka takes members of both kinds into one group: group.consumer.migration.policy"
        ),
    },
    "test_cluster_admin": {
        "test_directories_tell_the_sizes_of_partitions": AT_ONCE,
    },
    "test_transaction_admin": {
        "test_transactions_are_listed_and_described": (
            "it looks for its own transactional ids only, and Kafka keeps others' for a week"
        ),
        "test_what_is_not_there_is_told": (
            "a marker of an epoch that never was is UNKNOWN_SERVER_ERROR there"
        ),
    },
}
"""Likewise, of Apache Kafka itself."""


def reason(left_out: dict[str, dict[str, str]], module: str, test: str) -> str:
    """Why the test does not run there, or nothing."""
    tests = left_out.get(module, {})
    return tests.get(EVERY_TEST) or tests.get(test, "")


@asynccontextmanager
async def mocked(**topics: int) -> AsyncIterator[Log]:
    """Three brokers of librdkafka's mock cluster."""
    with MockCluster(brokers=3) as cluster:
        for name, partitions in topics.items():
            cluster.make_topic(name, partitions, 3)
        async with Log.open(f"kafka://{cluster.address}") as log:
            yield log


@asynccontextmanager
async def emptied_kafka(address: str, topics: Mapping[str, int]) -> AsyncIterator[Log]:
    """A broker of Apache Kafka without what is left of the tests before."""
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
            places = [TopicPartition(each.name, n) for each in new for n in range(each.partitions)]
            async with log.consumer() as consumer:
                await consumer.end_offsets(places)  # It tries until they are led.
        yield log


async def _abort(admin: Admin, transactional_id: str) -> None:
    """Its markers would come into a topic of the same name."""

    async def attempt() -> None:
        node_id = await admin._cluster.coordinator(transactional_id, key_type=1)
        asked = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        found = await admin._cluster.call(node_id, asked, InitProducerIdResponse)
        if found.error_code:
            raise error_for(found.error_code, f"transaction of {transactional_id}")

    await admin._cluster.retrying(attempt)


async def _forget(admin: Admin, group_id: str) -> None:
    """A static member, or one that was lost, is in its group until its session is over."""
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
