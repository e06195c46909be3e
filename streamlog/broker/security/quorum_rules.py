"""Rules of the controllers' quorum: its members ask each other by right of CLUSTER_ACTION.

Otherwise anybody could vote, or claim to lead. Who may DESCRIBE the cluster may look at it.
"""

from __future__ import annotations

from streamlog.broker.security.access_checks import GO_ON, Access, Verdict
from streamlog.protocol.acls import Operation
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_response
from streamlog.protocol.messages.quorum_messages import DescribeQuorumRequest
from streamlog.protocol.schema import Message

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def act(request: Message, access: Access) -> Verdict:
    """CLUSTER_ACTION on the cluster."""
    return _on_cluster(Operation.CLUSTER_ACTION, request, access)


def describe(request: DescribeQuorumRequest, access: Access) -> Verdict:
    """DESCRIBE on the cluster."""
    return _on_cluster(Operation.DESCRIBE, request, access)


def _on_cluster(operation: Operation, request: Message, access: Access) -> Verdict:
    return GO_ON if access.cluster(operation) else Verdict(error_response(request, DENIED))
