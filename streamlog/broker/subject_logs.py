"""Subject logs: one logger for each subject that an operator follows while something is wrong.

The names are those of Kafka's loggers, within `streamlog`:

- `streamlog.request`: at DEBUG, a line for each response, with the parts of its time.
- `streamlog.authorizer`: each denied operation as a warning, and at DEBUG each allowed one.
- `streamlog.quota`: at DEBUG, each time a client is throttled.
- `streamlog.controller`: at DEBUG, each record that the controller decides on.

Levels are set at the start, or while the broker runs (BROKER_LOGGER, KIP-412). Rule of this module:
a line costs nothing but the look at its level while the level is off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from streamlog import repeated
from streamlog.protocol.messages.metadata_log import ConfigRecord

REQUEST: Final = logging.getLogger("streamlog.request")
AUTHORIZER: Final = repeated.logger("streamlog.authorizer")
QUOTA: Final = logging.getLogger("streamlog.quota")
CONTROLLER: Final = logging.getLogger("streamlog.controller")

MS = 1_000
FILTERED: Final = frozenset({"DESCRIBE", "DESCRIBE_CONFIGS"})
"""Operations by which lists are filtered: that something is left out of one is no warning."""


def log_decision(who: tuple[str, str], operation: str, resource: str, *, allowed: bool) -> None:
    """Log a decision of the authorizer.

    `who` is the principal and its host; `resource` is the type and the name, such as `TOPIC a`.
    """
    # A warning passes the filter of `repeated`, which writes equal ones once a minute: a client
    # that is denied tries again at once, and must not fill the disk with its refusals.
    if not allowed and operation not in FILTERED:
        AUTHORIZER.warning("denied %s at %s the operation %s on %s", *who, operation, resource)
    elif AUTHORIZER.isEnabledFor(logging.DEBUG):
        word = "allowed" if allowed else "denied"
        AUTHORIZER.debug("%s %s at %s the operation %s on %s", word, *who, operation, resource)


def log_response(
    api: str, sender: tuple[str | None, str, str], times_s: tuple[float, float, float, float]
) -> None:
    """Log a response.

    Args:
        api: name and version of the API.
        sender: the client id, the principal and the address of the peer.
        times_s: the time in the queue, in the broker, until others were done, and until the
            response was handed out, in seconds (see `request_metrics`).
    """
    client_id, principal, peer = sender
    queue_ms, local_ms, remote_ms, response_queue_ms = (part * MS for part in times_s)
    REQUEST.debug(
        "%s of client %r (%s at %s): %.2f ms queue, %.2f ms local, %.2f ms remote, %.2f ms"
        " response queue",
        api,
        client_id,
        principal,
        peer,
        queue_ms,
        local_ms,
        remote_ms,
        response_queue_ms,
    )


def log_records(base_offset: int, records: Iterable[object]) -> None:
    """Log the records of a decision, which begin at `base_offset` of the metadata log."""
    if CONTROLLER.isEnabledFor(logging.DEBUG):
        for offset, record in enumerate(records, base_offset):
            CONTROLLER.debug("offset %d: %s", offset, _shown(record))


def _shown(record: object) -> str:
    """Return a record as text, without the value of a setting, which may be secret."""
    if isinstance(record, ConfigRecord):
        return (
            f"ConfigRecord(resource_type={record.resource_type},"
            f" resource_name={record.resource_name!r}, name={record.name!r}, ...)"
        )
    return repr(record)
