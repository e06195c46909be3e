"""The rules of publications: those of the transaction that a job is."""

from __future__ import annotations

from streamlog.broker.security.access_checks import GO_ON, Access, Verdict
from streamlog.protocol.acls import Operation
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_response
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    PublishRequest,
    StageRequest,
)

ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def publish(request: PublishRequest, access: Access) -> Verdict:
    """WRITE on the job's id and on all topics, READ on groups and their topics; or nothing."""
    if not access.transactional_id(Operation.WRITE, request.job_id):
        return _refused(
            request, ID_DENIED, f"transactional id {request.job_id}: {Operation.WRITE.name}"
        )
    for topic in request.topics:
        if not access.topic(Operation.WRITE, topic.name):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _refused(request, denied, f"topic {topic.name}: {Operation.WRITE.name}")
    for group in request.groups:
        if not access.group(Operation.READ, group.group_id):
            denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return _refused(request, denied, f"group {group.group_id}: {Operation.READ.name}")
        for placed in group.topics:
            if not access.topic(Operation.READ, placed.name):
                denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return _refused(request, denied, f"topic {placed.name}: {Operation.READ.name}")
    return GO_ON


def stage(request: StageRequest, access: Access) -> Verdict:
    """WRITE on the job's id."""
    if access.transactional_id(Operation.WRITE, request.job_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def drop(request: DropStagedRequest, access: Access) -> Verdict:
    """WRITE on the job's id."""
    if access.transactional_id(Operation.WRITE, request.job_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def _refused(request: PublishRequest, code: ErrorCode, what: str) -> Verdict:
    return Verdict(error_response(request, code, f"not allowed: {what}"))
