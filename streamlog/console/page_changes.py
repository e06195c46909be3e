"""Page changes: what a form of the console can change, found by the path that it is sent to.

Each change first says what it is, for the audit, and then is made. Shells around `Admin` and
`Producer`. Rules of the module: by the time a change is made, `request_guard` has allowed it; what
it did, or why it failed, is always returned. Internal topics are refused: a record that only a
broker may write would be read as its own, and with a deleted one, groups and transactions are gone.
For these, operators have the command line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from streamlog.client.admin.topic_admin import (
    PARTITIONS_DEFAULT,
    REPLICAS_DEFAULT,
    NewTopic,
    TopicDescription,
)
from streamlog.console.cluster_looks import find_mirror, look_at_mirrors
from streamlog.console.connect_desk import ACTIONS, ConnectDesk
from streamlog.console.group_looks import look_at_group, offsets_of
from streamlog.console.log_watch import LogWatch
from streamlog.console.markup import a, h1, joined
from streamlog.console.pages.connector_pages import connector, find_connector
from streamlog.console.pages.group_pages import Move, ResetForm, reset
from streamlog.console.pages.mirror_pages import mirror
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import address, heading_row, notice
from streamlog.console.pages.partition_form import PartitionsLook, add_partitions, wanted_of
from streamlog.console.pages.topic_forms import (
    NewTopicForm,
    SettingRow,
    SettingsLook,
    create_form,
    new_topic_of,
    settings,
    write_form,
    written_of,
)
from streamlog.errors import NotAuthorized, StreamlogError, UsageError, quantity
from streamlog.log import Log

Form: TypeAlias = Mapping[str, str]
SAID_MAX: Final = 100
"""Characters of a setting's value that the audit names."""
DELIVERY_MS: Final = 10_000
"""How long a browser waits for a record to be written."""
REQUEST_MS: Final = 5_000


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made or refused, and what to show next."""

    what: str
    """Names it for the audit, with all that matters of the form."""
    error: str = ""
    """Why it was not made; empty if it was."""
    view: View | None = None
    see: str = ""
    """The address to show; empty: `view`. A page that is shown so can be loaded again safely."""


NAMED_MAX: Final = 5
"""Partitions that the audit names; of the others, it has the number."""


class PageChange(msgspec.Struct, frozen=True):
    """A change that a path stands for."""

    what: str
    """Names it, before it is known whether it can be made."""
    make: Callable[[Form, str], Awaitable[Made]]
    """Makes it, by the fields of a form and the token for the next one."""


def change_of(  # noqa: PLR0911 - one for each change
    watch: LogWatch, connect: ConnectDesk, parts: tuple[str, ...]
) -> PageChange | None:
    """Return the change that a path stands for; None if nothing can be sent there."""
    match parts:
        case ("groups", name, "reset"):
            return PageChange(
                f"reset group {name}", lambda form, token: _reset(watch, name, form, token)
            )
        case ("mirrors", name, "pause" | "resume" as action):
            return PageChange(
                f"{action} mirror {name}",
                lambda _, token: _switch_mirror(watch, name, action, token),
            )
        case ("connectors", name, action) if action in ACTIONS:
            return PageChange(
                f"{action} connector {name}",
                lambda _, token: _switch_connector(connect, name, action, token),
            )
        case ("topics",):
            return PageChange("create a topic", lambda form, token: create(watch.log, form, token))
        case ("topics", name, "settings"):
            return PageChange(
                f"change settings of topic {name}",
                lambda form, token: alter(watch.log, name, form, token),
            )
        case ("topics", name, "partitions"):
            return PageChange(
                f"add partitions to topic {name}",
                lambda form, token: grow(watch.log, name, form, token),
            )
        case ("topics", name, "delete"):
            return PageChange(
                f"delete topic {name}",
                lambda form, token: delete(watch.log, name, form, token),
            )
        case ("topics", name, "write"):
            return PageChange(
                f"write to topic {name}",
                lambda form, token: write(watch.log, name, form, token),
            )
        case _:
            return None


async def _reset(watch: LogWatch, name: str, form: Form, token: str) -> Made:
    what, error, moves = f"reset group {name}", "", list[Move]()
    try:
        log = watch.log
        # Of a group that was deleted since the dry run, the broker would make a new one.
        await look_at_group(log, name)
        offsets = offsets_of(form.get("offsets", ""))
        # Asked now, for the audit: since the dry run, the group may have committed others.
        before = await log.admin().group_offsets(name)
        moves = [
            Move(part.topic, part.partition, before.get(part), offset)
            for part, offset in sorted(offsets.items())
        ]
        what = f"reset group {name}: {named_moves(moves)}"
        await log.admin().alter_group_offsets(name, offsets)
    except StreamlogError as refused:
        error = str(refused)
    try:
        look = await look_at_group(watch.log, name)
    # The outcome is what the operator has to know, also if there is nothing to show it on.
    except StreamlogError:
        said = notice("bad", error) if error else notice("good", f"{name}: done.")
        view = View(title=name, content=joined(heading_row(h1[name]), said), is_live=False)
    else:
        view = reset(look, ResetForm(), moves or None, token=token, error=error, is_done=not error)
    return Made(what=what, error=error, view=view)


def named_moves(moves: Sequence[Move]) -> str:
    """Return the first moves in words, and the number of the others."""
    first = ", ".join(f"{m.topic}-{m.partition} {m.before} to {m.after}" for m in moves[:NAMED_MAX])
    more = len(moves) - NAMED_MAX
    return f"{first} and {more} more" if more > 0 else first


async def _switch_mirror(watch: LogWatch, name: str, action: str, token: str) -> Made:
    """Let a mirror topic pause, or copy again."""
    what = f"{action} mirror {name}"
    try:
        admin = watch.log.admin()
        await (admin.pause_mirrors([name]) if action == "pause" else admin.resume_mirrors([name]))
    except StreamlogError as error:
        view = await _mirror_view(watch, name, token, str(error))
        return Made(what=what, error=str(error), view=view)
    return Made(what=what, see=address("mirrors", name))


async def _mirror_view(watch: LogWatch, name: str, token: str, error: str) -> View:
    found = None
    # Without an answer, the page still says why the change failed.
    with suppress(StreamlogError):
        found = find_mirror(await look_at_mirrors(watch.log), name)
    series = watch.mirror_history.series(name)
    return mirror(found, name, series, {}, token=token, error=error)


async def _switch_connector(desk: ConnectDesk, name: str, action: str, token: str) -> Made:
    """Pause, resume or restart a connector."""
    what = f"{action} connector {name}"
    try:
        await desk.change(name, action)
    except StreamlogError as error:
        found = None
        with suppress(StreamlogError):
            found = find_connector(await desk.connectors(), name)
        view = connector(found, name, token=token, error=str(error))
        return Made(what=what, error=str(error), view=view)
    return Made(what=what, see=address("connectors", name))


# ---- topics ----


async def look_at_settings(log: Log, name: str) -> SettingsLook:
    """Return the settings of a topic as they are now.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
    """
    topic = await _topic(log, name)
    entries = await log.admin().describe_configs(name)
    rows = [
        SettingRow(
            name=each.name,
            value=each.value if each.is_sensitive else each.value or "",
            source=each.source,
            is_read_only=each.is_read_only,
            documentation=each.documentation or "",
        )
        for _, each in sorted(entries.items())
    ]
    return SettingsLook(name, topic.is_internal, tuple(rows))


async def create(log: Log, form: Form, token: str) -> Made:
    """Create a topic."""
    what = f"create topic {form.get('name', '')}"
    try:
        new = new_topic_of(form)
        what = f"create topic {new.name}: {_facts(new)}"
        topic = NewTopic(
            new.name,
            PARTITIONS_DEFAULT if new.partitions is None else new.partitions,
            REPLICAS_DEFAULT if new.replicas is None else new.replicas,
            new.settings,
        )
        await log.admin().create_topics([topic])
    except StreamlogError as error:
        return Made(what=what, error=str(error), view=create_form(form, token, error=str(error)))
    return Made(what=what, see=address("topics", new.name))


def _facts(new: NewTopicForm) -> str:
    facts = {"partitions": new.partitions, "replicas": new.replicas, **new.settings}
    return ", ".join(
        f"{name} {'by default' if value is None else value}" for name, value in facts.items()
    )


async def alter(log: Log, name: str, form: Form, token: str) -> Made:
    """Set a setting of a topic, or return it to its default."""
    setting, value = form.get("setting", ""), form.get("value", "").strip()
    is_default = "default" in form
    what = f"topic {name}: {setting} to {'its default' if is_default else value[:SAID_MAX]}"
    error = ""
    try:
        await _own_topic(log, name)
        await log.admin().alter_configs({setting: None if is_default else value}, topic=name)
    except StreamlogError as refused:
        error = str(refused)
    done = "" if error else f"{setting} is set to {'its default' if is_default else value}."
    view = await _settings_view(
        log, name, {"edit": setting} if error else {}, token, error=error, done=done
    )
    return Made(what=what, error=error, view=view)


async def delete(log: Log, name: str, form: Form, token: str) -> Made:
    """Delete a topic whose name was typed to confirm it."""
    what, error = f"delete topic {name}", ""
    try:
        await _own_topic(log, name)
        if form.get("name", "") != name:
            raise UsageError(f"type the name of the topic, {name}, to delete it")
        await log.admin().delete_topics([name])
    except StreamlogError as refused:
        error = str(refused)
    if error:
        view = await _settings_view(log, name, {}, token, error=error)
        return Made(what=what, error=error, view=view)
    content = joined(
        heading_row(h1[name]),
        notice("good", "The topic and its records are deleted. ",
               a(href=address("topics"))["Show the other topics"]),
    )  # fmt: skip
    return Made(what=what, view=View(title=name, content=content, is_live=False))


async def _settings_view(
    log: Log, name: str, query: Form, token: str, *, error: str, done: str = ""
) -> View:
    try:
        look = await look_at_settings(log, name)
    # The outcome is what the operator has to know, also if there is nothing to show it on.
    except StreamlogError as unseen:
        said = notice("bad", error or str(unseen))
        return View(title=name, content=joined(heading_row(h1[name]), said), is_live=False)
    return settings(look, query, token, error=error, done=done)


async def write(log: Log, name: str, form: Form, token: str) -> Made:
    """Write one record, and show it."""
    what = f"write a record to topic {name}"
    try:
        record = written_of(form)
        await _own_topic(log, name)
        async with log.producer(
            delivery_timeout_ms=DELIVERY_MS, request_timeout_ms=REQUEST_MS
        ) as producer:
            sending = await producer.send(
                name,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
            )
        sent = await sending
    except StreamlogError as error:
        view = write_form(name, form, token, error=str(error))
        return Made(what=what, error=str(error), view=view)
    # Where it is, and not what it holds: the log of the process is no second store of records.
    what = f"write a record to topic {name}: partition {sent.partition}, offset {sent.offset}"
    see = address("topics", name, "messages", partition=sent.partition, begin="offset",
                  at=sent.offset, open=1)  # fmt: skip
    return Made(what=what, see=see)


async def look_at_partitions(log: Log, name: str) -> PartitionsLook:
    """Return how many partitions a topic has now.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
    """
    topic = await _topic(log, name)
    return PartitionsLook(name, topic.partitions, topic.is_internal)


async def try_partitions(log: Log, look: PartitionsLook, form: Form) -> int:
    """Return how many partitions a topic would have; the log is asked whether it agrees.

    Raises:
        StreamlogError: it does not.
    """
    wanted = wanted_of(look, form)
    await _own_topic(log, look.topic)
    await log.admin().create_partitions(look.topic, wanted, validate_only=True)
    return wanted


async def grow(log: Log, name: str, form: Form, token: str) -> Made:
    """Add partitions to a topic."""
    what, look = f"add partitions to topic {name}", PartitionsLook(name, 0, is_internal=False)
    try:
        look = await look_at_partitions(log, name)
        wanted = wanted_of(look, form)
        what = f"add partitions to topic {name}: {look.partitions} to {wanted}"
        await _own_topic(log, name)
        if form.get("before") != str(look.partitions):
            raise UsageError(
                f"{name} has {quantity(look.partitions, 'partition')} by now, and the dry run was"
                " for another number: repeat it"
            )
        await log.admin().create_partitions(name, wanted)
    except StreamlogError as error:
        view = add_partitions(look, form, None, token, error=str(error))
        return Made(what=what, error=str(error), view=view)
    return Made(what=what, see=address("topics", name, "partitions"))


async def _topic(log: Log, name: str) -> TopicDescription:
    (topic,) = await log.admin().describe_topics([name])
    return topic


async def _own_topic(log: Log, name: str) -> None:
    """Check that a topic exists and is not internal.

    Raises:
        NotAuthorized: it is internal.
        UnknownTopicOrPartition: there is none.
    """
    if (await _topic(log, name)).is_internal:
        raise NotAuthorized(f"{name} is an internal topic of the log: use the command line")
