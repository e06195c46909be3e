"""Access: the permission that a request of the REST API needs: an operation on a resource.

Pure. A subject is guarded as the topic that it belongs to (`resource_of`):

| request                                   | operation                                     |
|-------------------------------------------|-----------------------------------------------|
| read, look up, or compare a schema        | DESCRIBE of the topic                         |
| register a schema                         | WRITE of the topic                            |
| delete a version or a subject             | DELETE of the topic                           |
| read a compatibility level or a mode      | DESCRIBE_CONFIGS of the topic, or the cluster |
| change one                                | ALTER_CONFIGS of the topic, or the cluster    |

DESCRIBE follows from READ and WRITE, so every consumer and producer of a topic may read its
schemas. Lists contain what the client may DESCRIBE; an id is readable if one of its subjects is.
"""

from __future__ import annotations

from typing import NamedTuple

from streamlog.protocol.acls import Operation
from streamlog.registry.rest_requests import RestRequest
from streamlog.registry.subject_names import qualify, resource_of


class NeededAccess(NamedTuple):
    """An operation on a topic; on the cluster if the topic is None."""

    operation: Operation
    topic: str | None


def needed_access(request: RestRequest) -> NeededAccess | None:
    """Return what a request needs; None if its answer is filtered instead."""
    is_read = request.method == "GET"
    match request.path:
        case ("config" | "mode", *rest):
            operation = Operation.DESCRIBE_CONFIGS if is_read else Operation.ALTER_CONFIGS
            subject = rest[0] if rest else ""
            return NeededAccess(operation, _topic(subject) if subject else None)
        case ("compatibility", "subjects", subject, *_):
            return NeededAccess(Operation.DESCRIBE, _topic(subject))
        case ("subjects", subject, *rest):
            if request.method == "DELETE":
                return NeededAccess(Operation.DELETE, _topic(subject))
            registers = request.method == "POST" and rest == ["versions"]
            operation = Operation.WRITE if registers else Operation.DESCRIBE
            return NeededAccess(operation, _topic(subject))
        # Ids, lists, types: what the client may not see is left out of the answer.
        case _:
            return None


def _topic(subject: str) -> str | None:
    """Return the topic of a subject; None for a context, whose settings are the cluster's."""
    return None if qualify(subject).is_context else resource_of(subject)
