"""ErrorPolicy: what becomes of a record on which something fails.

The same four for what can't be read, for functions of the user's and for what can't be written; at
the app, at an agent, at an operator, the innermost counts. Rule of the file: a policy is a value;
what it does with a record is for `processing/error_handling`, and for agents `agents/failures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.nodes.topic_spec import check_name

RETRY_MS_MAX = 60_000
"""All waits for one record together: nothing of the task is committed meanwhile, and the group
waits no longer for a worker that is to give partitions up."""

Action = Literal["fail", "skip", "dlq", "retry"]


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What becomes of a record on which something fails; made by `on_error`."""

    action: Action
    is_logged: bool = True
    """Of `skip`: not only counted."""
    topic: str | None = None
    """Of `dlq`; None is the app's own, `<app>-dlq`."""
    times: int = 0
    """Of `retry`: attempts after the first."""
    backoff_ms: int = 0
    then: ErrorPolicy | None = None
    """Of `retry`: if they have all failed."""

    @property
    def chain(self) -> Iterator[ErrorPolicy]:
        """This one, and what comes after it."""
        policy: ErrorPolicy | None = self
        while policy is not None:
            yield policy
            policy = policy.then

    @property
    def retry_ms(self) -> int:
        """How long a record is waited for at most."""
        return sum(policy.times * policy.backoff_ms for policy in self.chain)

    def named(self, app_id: str) -> ErrorPolicy:
        """The same, with the topic for dead letters by its name."""
        then = None if self.then is None else self.then.named(app_id)
        topic = f"{app_id}-dlq" if self.action == "dlq" and self.topic is None else self.topic
        return replace(self, topic=topic, then=then)

    def dlq_topic(self, app_id: str) -> str | None:
        """The topic that records go to, if they may."""
        last = [*self.chain][-1]
        return (last.topic or f"{app_id}-dlq") if last.action == "dlq" else None


class on_error:  # noqa: N801 - reads as what it is in `on_error=on_error.skip()`
    """The policies.

    Example:
        >>> on_error.retry(3, backoff="200ms", then=on_error.dlq()).retry_ms
        600
    """

    FAIL: ClassVar[ErrorPolicy] = ErrorPolicy("fail")
    """The worker ends with the record's coordinates; nothing from the record on is committed."""

    @staticmethod
    def skip(*, log: bool = True) -> ErrorPolicy:
        """Go on without the record; it is counted, and told at most once a minute and node.

        Args:
            log: whether it is told at all.
        """
        return ErrorPolicy("skip", is_logged=log)

    @staticmethod
    def dlq(topic: str | None = None) -> ErrorPolicy:
        """Write the record, as it was read, to a topic for dead letters, and go on without it.

        Args:
            topic: the app's own, `<app>-dlq`, by default.

        Raises:
            TopologyError: the name can't be that of a topic.
        """
        return ErrorPolicy("dlq", topic=None if topic is None else check_name("a topic", topic))

    @staticmethod
    def retry(times: int, *, backoff: Dur = "100ms", then: ErrorPolicy = FAIL) -> ErrorPolicy:
        """Try again; the records behind it wait.

        Args:
            times: attempts after the first.
            backoff: the wait before each of them.
            then: if they have all failed.

        Raises:
            ConfigError: there is no attempt, or all waits together are longer than a minute.
        """
        if times < 1:
            raise ConfigError(f"on_error.retry needs 1 attempt or more, not {times}")
        policy = ErrorPolicy("retry", times=times, backoff_ms=duration_ms(backoff), then=then)
        if policy.retry_ms > RETRY_MS_MAX:
            raise ConfigError(
                f"on_error.retry would wait for {policy.retry_ms} ms, longer than "
                f"{RETRY_MS_MAX // 1000} s: everything behind the record waits as well; try less "
                "often, or then=on_error.dlq() and `streamlog dlq replay` later"
            )
        return policy
