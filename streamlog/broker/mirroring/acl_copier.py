"""AclCopier: gives mirrors and copied groups of a link the ACLs that they have at the source.

What is copied decides `acl_copy`. Rule of this module: a source that does not tell its ACLs changes
nothing here. An answer without ACLs and a refusal to answer are not to be confused: the first
removes every copy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from streamlog.broker.mirroring.acl_copy import (
    COPIED,
    COPIES_MAX,
    AclChange,
    NamesHere,
    plan_acls,
    rules_in,
)
from streamlog.broker.mirroring.group_copier import group_rules_of
from streamlog.broker.mirroring.link_notices import LinkNotices, listed
from streamlog.broker.mirroring.source_groups import SourceGroups
from streamlog.errors import CorruptData, LogError
from streamlog.protocol.acls import ANY_NAME, Operation, Pattern, Permission, ResourceType
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.mirror_messages import (
    AlterLinkAclsRequest,
    AlterLinkAclsResponse,
    LinkAclChange,
)
from streamlog.protocol.messages.sasl_acls_quotas import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from streamlog.broker.config.link import LinkConfig
    from streamlog.broker.mirroring.source_cluster import SourceCluster
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.quorum.metadata.mirror_topics import MirrorLink
    from streamlog.broker.security.acl_authorizer import AclRule
    from streamlog.protocol.schema import Message

CHANGES_PER_REQUEST = 1_000
"""Each is a record of the metadata, and a batch of these has a bound."""
ABOUT = "acls"
"""What notices are about."""
_WHY: Mapping[int, str] = {
    ErrorCode.SECURITY_DISABLED: "the source checks no ACLs",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "the link's user needs DESCRIBE on the source's cluster"
    ),
}


class AclCopier:
    """The copies of ACLs of one link.

    Args:
        link: the link.
        config: its settings.
        source: the cluster that it leads to, as `refresh` has found it.
        metadata: the committed metadata here.
        ask: sends a request to the active controller.
        notices: what keeps ACLs from being copied is noted here.
    """

    def __init__(
        self,
        link: MirrorLink,
        config: LinkConfig,
        source: SourceCluster,
        *,
        metadata: ClusterMetadata,
        ask: Callable[[Message], Awaitable[Message]],
        notices: LinkNotices,
    ) -> None:
        self._link = link
        self._rules = group_rules_of(config)
        self._source = source
        self._metadata = metadata
        self._ask = ask
        self._notices = notices

    async def copy(self) -> None:
        """Make the copies equal to the ACLs of the source.

        Raises:
            StreamlogError: the source or the controller does not answer.
        """
        try:
            left_out = await self._copy()
        except LogError as error:
            self._notices.note(ABOUT, f"ACLs are not copied: {error}")
            return
        beyond = f"a link copies {COPIES_MAX} ACLs at most; without their ACLs are "
        self._notices.note(ABOUT, f"{beyond}{listed(left_out)}" if left_out else "")

    async def _copy(self) -> tuple[str, ...]:
        there: set[AclRule] = set()
        for kind in COPIED:
            there |= await self._described(kind)
        metadata = self._metadata
        mirrors = {
            metadata.topics[topic_id].name: mirror.source_topic
            for topic_id, mirror in metadata.mirrors.items()
            if mirror.link_id == self._link.link_id and mirror.is_mirror
        }
        others = {each.name for each in metadata.topics.values()} - mirrors.keys()
        plan = plan_acls(
            there,
            metadata.link_acls(self._link.link_id),
            NamesHere(mirrors=mirrors, others=others),
            groups=await self._groups(there),
            rules=self._rules,
        )
        for begin in range(0, len(plan.changes), CHANGES_PER_REQUEST):
            portion = plan.changes[begin : begin + CHANGES_PER_REQUEST]
            answer = await self._ask(
                AlterLinkAclsRequest(
                    link_id=self._link.link_id, changes=[_field(each) for each in portion]
                )
            )
            if not isinstance(answer, AlterLinkAclsResponse):
                raise CorruptData("the controller did not answer AlterLinkAcls")
            if answer.error_code:
                raise error_for(answer.error_code, answer.error_message or "")
        return plan.left_out

    async def _described(self, kind: ResourceType) -> set[AclRule]:
        """Return the source's ACLs for a type of resource."""
        request = DescribeAclsRequest(
            resource_type_filter=kind,
            resource_name_filter=None,
            pattern_type_filter=Pattern.ANY,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        answer = await self._source.ask(request, DescribeAclsResponse)
        code = answer.error_code
        if code:
            raise error_for(code, _WHY.get(code, answer.error_message or "the source refuses"))
        return rules_in(answer.resources)

    async def _groups(self, there: set[AclRule]) -> set[str]:
        """Return the groups of the source, if an ACL applies to more than the one that it names."""
        is_wide = any(
            each.resource_type is ResourceType.GROUP
            and (each.pattern is Pattern.PREFIXED or each.name == ANY_NAME)
            for each in there
        )
        if not is_wide or not self._rules.groups:
            return set()
        found: set[str] = set()
        for node_id in self._source.broker_ids:
            asked = SourceGroups(node_id, self._source)
            try:
                found.update(await asked.ids())
            finally:
                await asked.close()
        return found


def _field(change: AclChange) -> LinkAclChange:
    acl = change.acl
    return LinkAclChange(
        adds=change.adds,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
