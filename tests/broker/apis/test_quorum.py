from __future__ import annotations

import asyncio

from simulation.loop import SimulatedLoop, live
from simulation.quorum import OBSERVER, Cluster
from streamlog.broker.apis.quorum import QuorumRequests
from streamlog.broker.quorum.raft.raft_wire import METADATA_TOPIC
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.quorum_messages import (
    DescribedQuorum,
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
    VoteResponse,
)


def quorum_of(requests: QuorumRequests, topic: str = METADATA_TOPIC) -> DescribedQuorum:
    asked = DescribeQuorumTopic(topic_name=topic, partitions=[DescribeQuorumPartition()])
    answer = requests.describe(DescribeQuorumRequest(topics=[asked]))
    (described,) = answer.topics[0].partitions
    return described


def test_describe_quorum_reports_the_log_end_offset_of_every_replica() -> None:
    async def story(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop, observers=(OBSERVER,))
        cluster.start()
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        await asyncio.sleep(1)
        described = quorum_of(QuorumRequests(leader))
        end_offset = leader.applied_offset
        assert described.error_code == ErrorCode.NONE
        assert described.leader_id == leader.controller_id
        assert described.leader_epoch == leader.epoch
        assert described.high_watermark == end_offset
        voters = {each.replica_id: each for each in described.current_voters}
        assert sorted(voters) == list(cluster.voters)
        assert {each.log_end_offset for each in described.current_voters} == {end_offset}
        assert [each.replica_id for each in described.observers] == [OBSERVER]
        wall_ms = 1_700_000_000_000 + loop.time() * 1000
        for voter, state in voters.items():
            if voter != leader.controller_id:
                assert 0 <= wall_ms - state.last_fetch_timestamp < 1_000
        other = next(each for each in cluster.members if each is not leader)
        redirected = quorum_of(QuorumRequests(other))
        assert redirected.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert redirected.leader_id == leader.controller_id
        unknown = quorum_of(QuorumRequests(leader), "orders")
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for node in cluster.nodes.values():
            await node.stop()

    assert live(story, 1).errors == ()


def test_requests_of_another_cluster_and_empty_ones_are_refused() -> None:
    async def story(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop, voters=(1,))
        requests = QuorumRequests(cluster.nodes[1].start())
        answer = requests.ask(VoteRequest(cluster_id="other"))
        assert isinstance(answer, VoteResponse)
        assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        nothing = requests.ask(FetchSnapshotRequest())
        assert isinstance(nothing, FetchSnapshotResponse)
        assert nothing.error_code == ErrorCode.INVALID_REQUEST
        await cluster.nodes[1].stop()

    assert live(story, 1).errors == ()
