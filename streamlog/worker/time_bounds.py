"""Time bounds: the topics that an app makes for itself take event time as it is.

A broker may bound the timestamps of records (`message.timestamp.after.max.ms`: an hour ahead of its
clock by default, here and in Kafka 4), or put its own clock in their place
(`message.timestamp.type`). That is right for what comes from outside. A repartition topic, puts
into a table and dead letters carry the event time of records that were accepted before, or that
`timestamp=` has read from a value; a changelog carries the clock of its worker. So these topics
have settings of their own, and those that an earlier release has made get them at the start of a
worker. What somebody has set for such a topic stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import LogError

logger = logging.getLogger(__name__)

UNBOUNDED: Final = str(2**63 - 1)
BOUNDS: Final = {
    "message.timestamp.before.max.ms": UNBOUNDED,
    "message.timestamp.after.max.ms": UNBOUNDED,
}
"""Of Kafka 3.6 and later."""
EVERY_TIME: Final = {"message.timestamp.type": "CreateTime", **BOUNDS}
"""The settings of a topic that takes every timestamp and keeps it."""
OF_TOPIC: Final = "topic"
"""Source of a setting that was set for the topic itself."""


def without_bounds(topic: NewTopic) -> NewTopic | None:
    """The topic for a broker that does not know the bounds; None if it asks for none."""
    if not topic.configs.keys() & BOUNDS.keys():
        return None
    configs = {name: value for name, value in topic.configs.items() if name not in BOUNDS}
    return replace(topic, configs=configs)


async def take_every_time(admin: Admin, topics: Iterable[str]) -> None:
    """Give existing topics the settings of one that takes every timestamp."""
    for topic in sorted(topics):
        try:
            found = await admin.describe_configs(topic)
        except LogError as error:  # Not every user may look at settings.
            logger.info("the settings of topic %s can't be read: %s", topic, error)
            continue
        lacking = {
            name: value
            for name, value in EVERY_TIME.items()
            if name in found and found[name].source != OF_TOPIC and found[name].value != value
        }
        if not lacking:
            continue
        shown = ",".join(f"{name}={value}" for name, value in lacking.items())
        try:
            await admin.alter_configs(lacking, topic=topic)
        except LogError as error:
            sets = " ".join(f"--set {each}" for each in shown.split(","))
            logger.warning(
                "topic %s may refuse event times that this app writes, and its settings can't be"
                " altered (%s). Run as a user who may: streamlog configs alter --topic %s %s"
                " --log URL",
                topic, error, topic, sets,
            )  # fmt: skip
        else:
            logger.info("topic %s takes every event time from now on: set %s", topic, shown)
