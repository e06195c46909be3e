"""Brokers that others wrote, as places for the tests of our client, and what is left out there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from conformance.mock import MockCluster
from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode

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
    "test_replica_admin": {
        EVERY_TEST: NO_ADMIN,
    },
    "test_transaction_admin": {
        EVERY_TEST: NO_ADMIN,
    },
    "test_commits": {
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
    "test_topic_watch": {
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

OURS = "it looks at words and defaults that are our broker's"
NOT_ALONE = "it takes itself for alone, and Kafka has topics of its own"
AT_ONCE = "it asks at once for what Kafka does a moment later"

NOT_ON_KAFKA: dict[str, dict[str, str]] = {
    "test_consumer_protocol": {
        EVERY_TEST: "it alters settings of groups that Kafka has only when it starts"
    },
    "test_admin": {
        "test_refusals_name_the_topic_and_the_rest_is_done": OURS,
        "test_lists_grow_and_shrink": AT_ONCE,
        "test_settings_are_shown_and_changed": OURS,
        "test_settings_of_one_broker_and_of_all": OURS,
        "test_topics_come_and_go": AT_ONCE,
        "test_what_has_settings_is_listed": NOT_ALONE,
        "test_what_would_come_of_it_is_told_without_doing_it": OURS,
    },
    "test_replica_admin": {
        "test_directories_tell_the_sizes_of_partitions": NOT_ALONE,
        "test_partitions_stay_where_they_are": OURS,
    },
    "test_transaction_admin": {
        EVERY_TEST: "it asks for a transaction before there is a coordinator",
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
    """A broker of Apache Kafka without the topics and groups of the tests before."""
    async with Log.open(f"kafka://{address}") as log, log.admin() as admin:
        old = [each.name for each in await admin.list_topics() if not each.name.startswith("__")]
        if old:
            await admin.delete_topics(old)
        for group in await admin.list_groups():
            await _forget(admin, group.group_id)
        while {each.name for each in await admin.list_topics()} & set(old):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        new = [NewTopic(name, partitions) for name, partitions in topics.items()]
        if new:
            await admin.create_topics(new)
        yield log


async def _forget(admin: Admin, group_id: str) -> None:
    """A static member is in its group until its session is over."""
    while True:
        try:
            await admin.delete_groups([group_id])
        except LogError as error:
            if error.code != ErrorCode.NON_EMPTY_GROUP:
                raise
            await asyncio.sleep(0.2)
        else:
            return
