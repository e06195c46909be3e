"""Marks: asks the log for the time marks that tasks wait for, and tells where there are none.

A broker of streamlog marks in an input that nothing comes any more, if a task's windows or timers
wait for it; a broker of Kafka does not know that. There event time goes on with the next record:
that is told once, when a task waits for the first time. Not done here: what a task waits for
(`Task.waits_quiet`), and writing marks (`broker.marking`).
"""

from __future__ import annotations

import logging

from streamlog.assignors import TopicPartition
from streamlog.client.consumer import Consumer
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.processing.task import TaskId

logger = logging.getLogger(__name__)


class Marks:
    """What a worker wants of the inputs that are quiet."""

    def __init__(self, log: Log, consumer: Consumer) -> None:
        self._log = log
        self._consumer = consumer
        self._is_known = False

    async def want(self, task_id: TaskId, partition: TopicPartition, after_ms: int | None) -> None:
        """See `Consumer.want_mark`."""
        self._consumer.want_mark(partition, after_ms)
        if after_ms is None or self._is_known:
            return
        try:
            are_written = await self._log.admin().is_streamlog()
        except StreamlogError as error:
            logger.debug("nobody knows whether there are time marks: %s", error)
            return  # Whoever wants the next one asks again.
        if not are_written and not self._is_known:
            logger.warning(
                "this log's brokers are none of streamlog's and write no time marks: what is due "
                "once time has passed (windows that close, timers of event time, rows without a "
                "partner) waits for the next record where nothing comes, as in task %s for %s-%d",
                task_id,
                *partition,
            )
        self._is_known = True
