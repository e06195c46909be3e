"""Admin manages a log: topics, settings, groups, transactions, replicas, access, jobs, links.

`Admin` joins the areas of this package; each area has the calls about one subject, with the values
that they take and return. A call about several things does what the brokers accept; it then raises
the first refusal, whose `refusals` holds all of them.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from streamlog.client.admin.cluster_admin import (
    FutureReplica,
    LogDir,
    NodeAdmin,
    QuorumAdmin,
    Reassignment,
    ReplicaAdmin,
    ThrottleAdmin,
)
from streamlog.client.admin.cluster_descriptions import (
    BrokerDescription,
    ClusterDescription,
    QuorumDescription,
)
from streamlog.client.admin.config_admin import (
    Append,
    ConfigAdmin,
    ConfigEntry,
    ConfigResource,
    Subtract,
)
from streamlog.client.admin.group_admin import (
    GroupAdmin,
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    PartitionLagDescription,
)
from streamlog.client.admin.lossless_promotion import PromotionOutcome, PromotionPatience
from streamlog.client.admin.mirror_admin import (
    LinkDescription,
    MirrorAdmin,
    MirrorDescription,
    MirrorPartitionDescription,
    MirrorsDescription,
    MirrorStatus,
    PossibleLoss,
    SealDescription,
    SealStatus,
)
from streamlog.client.admin.security_admin import (
    Acl,
    AclAdmin,
    AclFilter,
    ClientQuota,
    QuotaAdmin,
    UserAdmin,
)
from streamlog.client.admin.topic_admin import (
    EpochAdmin,
    NewTopic,
    Publication,
    PublishAdmin,
    PublishedRange,
    TopicAdmin,
    TopicDescription,
)
from streamlog.client.admin.transaction_admin import (
    HangingTransaction,
    ProducerDescription,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from streamlog.client.metrics.client_metrics import ClientMetrics
from streamlog.client.metrics.metric_names import ADMIN

__all__ = [
    "Acl",
    "AclFilter",
    "Admin",
    "Append",
    "BrokerDescription",
    "ClientQuota",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "FutureReplica",
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "HangingTransaction",
    "LinkDescription",
    "LogDir",
    "MirrorDescription",
    "MirrorPartitionDescription",
    "MirrorStatus",
    "MirrorsDescription",
    "NewTopic",
    "PartitionLagDescription",
    "PossibleLoss",
    "ProducerDescription",
    "PromotionOutcome",
    "PromotionPatience",
    "Publication",
    "PublishedRange",
    "QuorumDescription",
    "Reassignment",
    "SealDescription",
    "SealStatus",
    "Subtract",
    "TopicDescription",
    "TransactionDescription",
    "TransactionListing",
]


class Admin(
    ThrottleAdmin,
    TopicAdmin,
    ConfigAdmin,
    GroupAdmin,
    TransactionAdmin,
    ReplicaAdmin,
    QuorumAdmin,
    NodeAdmin,
    AclAdmin,
    UserAdmin,
    QuotaAdmin,
    PublishAdmin,
    EpochAdmin,
    MirrorAdmin,
):
    """Manages a log. `Log.admin` returns it; it uses the log's connections and leaves them open.

    Every call retries errors that may pass, for up to a minute, and raises the last one.

    Example:
        await log.admin().create_topics([NewTopic("orders", 4, configs={"retention.ms": "-1"})])
    """

    async def __aenter__(self) -> Self:
        return self

    def metrics(self) -> ClientMetrics:
        """Return the metrics of the log's own connections, named as by Kafka's admin clients.

        They are the groups `admin-client-metrics` and `admin-client-node-metrics`;
        docs/client-metrics.md lists them.
        """
        cluster, now_ms = self._cluster, self._cluster.clock.now_ms()
        cluster.network.windows.advance(now_ms)
        return ClientMetrics.of(cluster.client_id, cluster.network.read(ADMIN, now_ms))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing: the connections belong to the log."""
