"""Change tools: what an assistant may change, each time as a plan first and then as it was shown.

A tool makes a plan, and changes nothing. `make_change` takes the number of a plan and its words,
and makes exactly this change. So a client that asks before a call shows what the call does. Rules
of the module: a plan is made once, within `PLAN_MS`; every attempt is written down.
"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from streamlog.cli.assistant.app_tools import LETTERS_SHOWN, letter_row
from streamlog.cli.assistant.assistant_desk import AssistantDesk, AssistantTool, tool
from streamlog.cli.assistant.bounded_answers import Answer, Arguments
from streamlog.cli.assistant.log_tools import NAME_MAX, VALUE_DEFAULT, Name
from streamlog.clock import Clock
from streamlog.console.cluster_looks import find_mirror, look_at_mirrors
from streamlog.console.group_looks import look_at_group, plan_reset
from streamlog.console.page_changes import named_moves
from streamlog.console.pages.connector_pages import find_connector
from streamlog.console.pages.group_pages import ResetForm
from streamlog.console.worker_console.letters import read_chosen, send_letters, shown_letter
from streamlog.errors import StreamlogError, UsageError, quantity
from streamlog.record import TopicPartition
from streamlog.worker.topics.dead_letters import letter_reader, progress

PLANS_MAX: Final = 20
PLAN_MS: Final = 10 * 60_000
"""How long a plan can be made."""
CHANGE_MAX: Final = 2_000
NAMED: Final = 5
"""Letters that a plan's words name; its rows have all."""

audit = logging.getLogger("streamlog.audit")
"""Every change that was asked for."""


class ChangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was shown and not made yet."""

    what: str
    """Names it, with all that matters."""
    make: Callable[[], Awaitable[object]]
    until_ms: int


class ChangePlans:
    """The plans of one server, and the tools that make them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._plans: dict[str, ChangePlan] = {}
        self._made = 0

    def tools(self) -> tuple[AssistantTool, ...]:
        """Return the tools that change something."""
        return (
            tool(GroupReset, self.plan_group_reset, title="Plan: move a group", is_planning=True),
            tool(
                LettersAgain,
                self.plan_letters_again,
                title="Plan: send dead letters again",
                from_records="letters",
                is_planning=True,
            ),
            tool(
                MirrorSwitch,
                self.plan_mirror_switch,
                title="Plan: pause or resume a mirror",
                is_planning=True,
            ),
            tool(
                ConnectorSwitch,
                self.plan_connector_switch,
                title="Plan: pause, resume or restart a connector",
                is_planning=True,
            ),
            tool(PlannedChange, self.make_change, title="Make a planned change", is_changing=True),
        )

    def _add(self, what: str, make: Callable[[], Awaitable[object]], facts: Answer) -> Answer:
        now_ms = self._clock.now_ms()
        self._plans = {name: each for name, each in self._plans.items() if each.until_ms > now_ms}
        # The oldest goes first: a client that only plans must not fill the memory.
        while len(self._plans) >= PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        self._made += 1
        name = f"plan-{self._made}"
        self._plans[name] = ChangePlan(what=what, make=make, until_ms=now_ms + PLAN_MS)
        return {
            "plan": name,
            "change": what,
            **facts,
            "note": "Nothing was changed. To make this change, show it to the operator, and call"
            " make_change with this plan and these words.",
        }

    async def make_change(self, _desk: AssistantDesk, asked: PlannedChange) -> Answer:
        """Make a change exactly as a plan has shown it, once.

        Takes the plan's number and its words.
        """
        plan = self._plans.get(asked.plan)
        if plan is None or plan.until_ms <= self._clock.now_ms():
            raise UsageError(f"there is no plan {asked.plan!r}, or it is older than 10 minutes")
        # The words are what the operator has read; the number alone may be that of another plan.
        if asked.change != plan.what:
            raise UsageError(f"{asked.plan} is another change: {plan.what}")
        # Before it is made: a change that failed half-way needs a new look at what is there now.
        del self._plans[asked.plan]
        try:
            await plan.make()
        except StreamlogError as error:
            _write_down(plan.what, str(error))
            raise
        _write_down(plan.what, "done")
        return {"done": plan.what}

    async def plan_group_reset(self, desk: AssistantDesk, asked: GroupReset) -> Answer:
        """Plan to move the committed offsets of a group without members. Changes nothing."""
        form = ResetForm(target=asked.to, at=asked.at, topic=asked.topic)
        async with desk.log() as log:
            look = await look_at_group(log, asked.group)
            moves = await plan_reset(log, asked.group, form)
        # Offsets and not the target: "latest" would mean another place when the change is made.
        offsets = {TopicPartition(each.topic, each.partition): each.after for each in moves}
        facts = {"members_now": len(look.members), "moves": moves}
        what = f"reset group {asked.group}: {named_moves(moves)}"
        return self._add(what, partial(_reset, desk, asked.group, offsets), facts)

    async def plan_letters_again(self, desk: AssistantDesk, asked: LettersAgain) -> Answer:
        """Plan to send dead letters again, to the partitions they came from. Changes nothing.

        They are sent in one transaction.
        """
        chosen = [_position(each) for each in dict.fromkeys(asked.letters)]
        async with desk.log() as log, letter_reader(log, asked.topic) as consumer:
            sent = await progress(log, consumer, asked.topic)
            found = await read_chosen(log, consumer, asked.topic, chosen, sent)
        rows = [shown_letter(each, sent) for each in found]
        if len(rows) < len(chosen):
            gone = {*asked.letters} - {each.position for each in rows}
            raise UsageError(f"{asked.topic} has no such letters: {', '.join(sorted(gone))}")
        if passed := [each.position for each in rows if each.is_sent or each.is_internal]:
            raise UsageError(
                f"letters that were sent again already, or that only the app may write:"
                f" {', '.join(passed)}"
            )
        first = ", ".join(asked.letters[:NAMED])
        more = f" and {len(chosen) - NAMED} more" if len(chosen) > NAMED else ""
        what = f"send {quantity(len(chosen), 'letter')} of {asked.topic} again: {first}{more}"
        facts = {"letters": [letter_row(each, VALUE_DEFAULT) for each in rows]}
        return self._add(what, partial(_send, desk, asked.topic, chosen), facts)

    async def plan_mirror_switch(self, desk: AssistantDesk, asked: MirrorSwitch) -> Answer:
        """Plan to pause a mirror topic, or to let it copy again. Changes nothing."""
        async with desk.log() as log:
            found = find_mirror(await look_at_mirrors(log), asked.topic)
        if found is None:
            raise UsageError(f"there is no mirror {asked.topic!r}")
        make = partial(_switch_mirror, desk, asked.topic, asked.action)
        return self._add(f"{asked.action} mirror {asked.topic}", make, {"status": found.status})

    async def plan_connector_switch(self, desk: AssistantDesk, asked: ConnectorSwitch) -> Answer:
        """Plan to pause, resume or restart a connector with its tasks. Changes nothing."""
        async with desk.asked_connect() as service:
            found = find_connector(await service.connectors(), asked.connector)
        if found is None:
            raise UsageError(f"there is no connector {asked.connector!r}")
        make = partial(_switch_connector, desk, asked.connector, asked.action)
        what = f"{asked.action} connector {asked.connector}"
        return self._add(what, make, {"state": found.state})


class PlannedChange(Arguments, frozen=True):
    """Which plan to make."""

    plan: Name
    change: Annotated[
        str, Meta(max_length=CHANGE_MAX, description="The plan's words, as it was shown.")
    ]


class GroupReset(Arguments, frozen=True):
    """Where to move a group."""

    group: Name
    to: Literal["earliest", "latest", "time", "offset", "shift"]
    at: Annotated[
        str,
        Meta(max_length=100, description="The time (ISO 8601, UTC), the offset, or the shift."),
    ] = ""
    topic: Annotated[
        str, Meta(max_length=NAME_MAX, description="Empty: all that it has committed.")
    ] = ""


class LettersAgain(Arguments, frozen=True):
    """Which letters to send again."""

    topic: Name
    letters: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=LETTERS_SHOWN,
            description='PARTITION:OFFSET of each, as dead_letters shows it, such as "0:12".',
        ),
    ]


class MirrorSwitch(Arguments, frozen=True):
    """What to do with a mirror topic."""

    topic: Name
    action: Literal["pause", "resume"]


class ConnectorSwitch(Arguments, frozen=True):
    """What to do with a connector."""

    connector: Name
    action: Literal["pause", "resume", "restart"]


def _position(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    is_whole = all(each.isascii() and each.isdecimal() for each in (partition, offset))
    if not is_whole or len(text) > 30:  # noqa: PLR2004 - digits of two numbers
        raise UsageError(f"a letter is PARTITION:OFFSET, such as 0:12, not {text[:40]!r}")
    return int(partition), int(offset)


async def _reset(desk: AssistantDesk, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    async with desk.log() as log:
        # Of a group that was deleted since the plan, the broker would make a new one.
        await look_at_group(log, group)
        await log.admin().alter_group_offsets(group, offsets)


async def _send(desk: AssistantDesk, topic: str, chosen: Collection[tuple[int, int]]) -> None:
    app = desk.session.app
    async with desk.log() as log:
        await send_letters(log, topic, chosen, None if app is None else app.program().topics)


async def _switch_mirror(desk: AssistantDesk, topic: str, action: str) -> None:
    async with desk.log() as log:
        admin = log.admin()
        await (admin.pause_mirrors([topic]) if action == "pause" else admin.resume_mirrors([topic]))


async def _switch_connector(desk: AssistantDesk, name: str, action: str) -> None:
    async with desk.asked_connect() as service:
        await service.change(name, action)


def _write_down(what: str, outcome: str) -> None:
    # Quoted, as on the console: a name may hold a line break, and a second line would be forged.
    audit.info(
        "user=%r client=mcp change=%r outcome=%r", _user(), what[:CHANGE_MAX], outcome[:CHANGE_MAX]
    )


def _user() -> str:
    try:
        return getpass.getuser()
    # A container may run as a number that has no name.
    except (KeyError, OSError):
        return str(os.getuid())
