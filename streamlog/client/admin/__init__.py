"""Admin: everything that is managed on a log, from topics to transactions.

Put together from rooms, each of which has the calls about one thing and the values that they take
and give. A call about several things does what can be done; of what was refused it raises the
first, and that error has all of them in `refusals`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from streamlog.client.admin.cluster_admin import (
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
    ProducerDescription,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
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
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "LogDir",
    "NewTopic",
    "ProducerDescription",
    "Publication",
    "PublishedRange",
    "QuorumDescription",
    "Reassignment",
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
):
    """Manages a log, over the connections of whoever made it, which it leaves open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is left to do: every call has been answered."""
