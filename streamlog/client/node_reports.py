"""NodeAdmin: what each broker process says of itself and of its own replicas.

The part of `Admin` that asks brokers one by one. The metadata, which any broker can tell, says what
a broker had when it last registered; only the process itself can say what it has now.
"""

from __future__ import annotations

import asyncio

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import AdminRoom, check
from streamlog.client.cluster_descriptions import (
    NodeReport,
    Registration,
    ReplicaReport,
    Reports,
)
from streamlog.errors import StreamlogError
from streamlog.protocol.messages.partitions import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

REPORT_TIMEOUT_MS = 5_000
"""How long one broker may take to report."""


class NodeAdmin(AdminRoom):
    """Asks brokers about themselves."""

    async def describe_nodes(self) -> Reports:
        """What each broker that the cluster takes for alive says of itself, all asked at once."""
        nodes = await self._cluster.retrying(self._cluster.nodes)
        told: dict[int, NodeReport] = {}
        silent: dict[int, str] = {}

        async def question(node_id: int) -> None:
            try:
                report = await self._report(node_id)
            except StreamlogError as error:
                silent[node_id] = str(error)
            else:
                if report is not None:
                    told[node_id] = report

        async with asyncio.TaskGroup() as group:
            for node_id in nodes:
                group.create_task(question(node_id))
        return Reports(told, silent)

    async def _report(self, node_id: int) -> NodeReport | None:
        request = DescribeLogDirsRequest(topics=None, include_report=True)
        response = await self._cluster.call(
            node_id, request, DescribeLogDirsResponse, timeout_ms=REPORT_TIMEOUT_MS
        )
        check(f"broker {node_id}", response.error_code)
        for each in response.results:
            check(f"directory {each.log_dir} of broker {node_id}", each.error_code)
        return _read(response)


def _read(response: DescribeLogDirsResponse) -> NodeReport | None:
    report = response.report
    if report is None:
        return None
    return NodeReport(
        node_id=report.broker_id,
        epoch=report.broker_epoch,
        directory=report.directory_id,
        applied_offset=report.applied_offset,
        quorum_leader=report.quorum_leader,
        quorum_epoch=report.quorum_epoch,
        is_rejoining=report.is_rejoining,
        strays=report.strays,
        registrations={
            each.broker_id: Registration(
                epoch=each.broker_epoch,
                is_fenced=each.is_fenced,
                directories=tuple(each.log_dirs),
            )
            for each in report.registrations
        },
        replicas={
            TopicPartition(topic.name, each.partition_index): ReplicaReport(
                leader_epoch=each.report.leader_epoch,
                in_sync=None if each.report.isr is None else tuple(each.report.isr),
                high_watermark=each.report.high_watermark,
                end_offset=each.report.log_end_offset,
            )
            for result in response.results
            for topic in result.topics
            for each in topic.partitions
            if each.report is not None
        },
    )
