"""ErrorPolicy: what happens to a record on which a node fails.

The four policies apply to records that can't be read, to failures of user functions, and to records
that can't be written. The innermost one counts: an operator's or an agent's before a topic's before
the app's. Rule of the file: a policy is a value. `processing/error_handling` carries it out for
operators, `agents/run` for agents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.nodes.topic_spec import check_name
from streamlog.replace import replace

RETRY_MS_MAX = 60_000
"""The limit for the sum of all waits for one record. The task commits nothing during a wait, and a
rebalance waits no longer than this for a worker to release its partitions."""

Action = Literal["fail", "skip", "dlq", "retry"]


class ErrorPolicy(msgspec.Struct, frozen=True):
    """What happens to a record on which a node fails; `on_error` creates the policies."""

    action: Action
    is_logged: bool = True
    """For `skip`: whether skipped records are logged as well as counted."""
    topic: str | None = None
    """For `dlq`: the topic; None stands for the app's own, `<app>-dlq`."""
    times: int = 0
    """For `retry`: the number of attempts after the first."""
    backoff_ms: int = 0
    """For `retry`: the wait before each attempt."""
    then: ErrorPolicy | None = None
    """For `retry`: the policy that applies when all attempts have failed."""

    @property
    def chain(self) -> Iterator[ErrorPolicy]:
        """Yield this policy and each one that follows it."""
        policy: ErrorPolicy | None = self
        while policy is not None:
            yield policy
            policy = policy.then

    @property
    def retry_ms(self) -> int:
        """Return the longest time that one record is retried, in milliseconds."""
        return sum(policy.times * policy.backoff_ms for policy in self.chain)

    def named(self, app_id: str) -> ErrorPolicy:
        """Return a copy that names the dead-letter topic of this app explicitly."""
        then = None if self.then is None else self.then.named(app_id)
        topic = f"{app_id}-dlq" if self.action == "dlq" and self.topic is None else self.topic
        return replace(self, topic=topic, then=then)

    def dlq_topic(self, app_id: str) -> str | None:
        """Return the dead-letter topic, or None if the policy ends in another action."""
        # Only `retry` has a policy after it, so the last one decides what happens in the end.
        last = [*self.chain][-1]
        return (last.topic or f"{app_id}-dlq") if last.action == "dlq" else None


class on_error:  # noqa: N801 - reads as what it is in `on_error=on_error.skip()`
    """The error policies: `FAIL`, `skip`, `dlq` and `retry`.

    Example:
        >>> on_error.retry(3, backoff="200ms", then=on_error.dlq()).retry_ms
        600
    """

    FAIL: ClassVar[ErrorPolicy] = ErrorPolicy("fail")
    """End the worker with the record's coordinates; the record is not committed."""

    @staticmethod
    def skip(*, log: bool = True) -> ErrorPolicy:
        """Leave the record out, count it, and log it at most once a minute per node.

        Args:
            log: False counts without logging.
        """
        return ErrorPolicy("skip", is_logged=log)

    @staticmethod
    def dlq(topic: str | None = None) -> ErrorPolicy:
        """Write the record, as it was read, to a dead-letter topic, and leave it out (KIP-1034).

        Args:
            topic: the topic's name; `<app>-dlq` by default.

        Raises:
            TopologyError: the name is not a valid topic name.
        """
        return ErrorPolicy("dlq", topic=None if topic is None else check_name("a topic", topic))

    @staticmethod
    def retry(times: int, *, backoff: Dur = "100ms", then: ErrorPolicy = FAIL) -> ErrorPolicy:
        """Try again while the records after this one wait.

        Args:
            times: the number of attempts after the first, 1 or more.
            backoff: the wait before each attempt.
            then: the policy that applies when all attempts have failed.

        Raises:
            ConfigError: `times` is below 1, or all waits together are longer than one minute.
        """
        if times < 1:
            raise ConfigError(f"on_error.retry needs times=1 or more, not {times}")
        policy = ErrorPolicy("retry", times=times, backoff_ms=duration_ms(backoff), then=then)
        if policy.retry_ms > RETRY_MS_MAX:
            raise ConfigError(
                f"on_error.retry would wait for {policy.retry_ms} ms, longer than "
                f"{RETRY_MS_MAX // 1000} s, and all records after the failed one would wait as "
                "well: lower times or backoff, or use then=on_error.dlq() and replay the records "
                "later with `streamlog dlq replay`"
            )
        return policy
