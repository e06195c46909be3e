"""`streamlog mirror promote`, `fail-back` and `unseal`: which cluster a topic belongs to.

All show what they would do and ask first. A promotion can't be taken back: the topic takes records
of its own, and follows its source again only by a fail back, which cuts those off.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.broker.config.link import LinkConfig, apps_of, patterns_of
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.mirroring.link_login import login_of
from streamlog.broker.mirroring.link_plan import own_topics
from streamlog.broker.mirroring.link_runner import rules_of
from streamlog.cli.broker_command import broker_config
from streamlog.cli.operate.app_promotion import (
    AppPlan,
    carry_out,
    check_call,
    mirrors_of,
    plan_promotion,
)
from streamlog.cli.session import LogOption, Session, ask, complete_links, with_log
from streamlog.cli.terminal import out, say
from streamlog.client.admin import (
    Admin,
    LinkDescription,
    MirrorDescription,
    MirrorsDescription,
    MirrorStatus,
    PossibleLoss,
    PromotionOutcome,
    PromotionPatience,
)
from streamlog.errors import ConfigError, UsageError, quantity, some_of
from streamlog.log import Log
from streamlog.replace import replace
from streamlog.transport.security import Security

REASONS_SHOWN = 5
PATIENCE = PromotionPatience()

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LinkArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The link.", autocompletion=complete_links)
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
TopicsOption = Annotated[
    str | None,
    typer.Option(
        "--topics",
        metavar="PATTERN",
        help="Only topics with these names here: regular expressions, with commas between them.",
    ),
]


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings of a broker, which name the files and variables that the login of a"
        " link may refer to.",
    ),
]


def promote(
    context: typer.Context,
    name: LinkArgument,
    *,
    topics: TopicsOption = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="ID",
            help="All topics of an app that the link mirrors. Without --now, its workers have to be"
            " stopped; with it, its transactions are here whole or not at all.",
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="With the records that are here, and no others.")
    ] = False,
    timeout_ms: Annotated[
        int,
        typer.Option(
            "--timeout-ms", min=1, help="After this time without --now, nothing is changed."
        ),
    ] = PATIENCE.timeout_ms,
    still_ms: Annotated[
        int,
        typer.Option(
            "--still-ms",
            min=1,
            help="For how long a source that is Apache Kafka has to get no records.",
        ),
    ] = PATIENCE.still_ms,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Let mirrors become topics of this cluster, without loss unless --now is given; ask first."""
    _check_asks(yes=yes, as_json=as_json)
    call = _Promotion(context.obj, log, name, topics, app, yes=yes, as_json=as_json)
    if app is not None and now:
        _promote_app_now(call, app)
    elif now:
        _promote_now(call)
    else:
        patience = PromotionPatience(timeout_ms=timeout_ms, still_ms=still_ms)
        _promote_without_loss(call, patience, broker_config(config, None).security)


class _Promotion(NamedTuple):
    """What `promote` was called with."""

    session: Session
    log: str | None
    link: str
    topics: str | None
    app: str | None
    yes: bool
    as_json: bool


def _promote_without_loss(
    call: _Promotion, patience: PromotionPatience, security: SecurityConfig
) -> None:
    chosen = _chooser(call.topics)

    async def look(admin: Admin) -> tuple[LinkDescription, list[MirrorDescription]]:
        found = await admin.describe_mirrors()
        link = link_named(found, call.link)
        mirrors = [e for e in found.mirrors if e.link == call.link and chosen(e.name)]
        if call.app is None:
            return link, mirrors
        check_call(call.app, link, call.topics)
        return link, await mirrors_of(admin, link, call.app, mirrors)

    link, mirrors = ask(call.session, call.log, look)
    left = [each for each in mirrors if each.status is not MirrorStatus.PROMOTED]
    if left and not call.yes:
        say(
            f"{some_of([each.source_topic for each in left])} of cluster"
            f" {link.source_cluster_id} will take no records any more: its producers get an error,"
            " and continue here. If this cluster does not have everything within"
            f" {lag_text(patience.timeout_ms)} s, those topics take records again. Apache Kafka"
            " can't refuse records: if the source is one, stop its producers first"
        )
        typer.confirm(f"promote {some_of([each.name for each in left])}?", abort=True)

    async def take_over(opened: Log) -> PromotionOutcome:
        async with open_source(link, security) as source:
            return await opened.admin().promote_mirrors(
                source.admin(),
                mirrors,
                # Those of its apps are copied, whatever groups it names.
                copies_groups=bool(link.settings.get("groups") or link.settings.get("apps")),
                app=call.app or "",
                patience=patience,
                on_wait=lambda what: say(f"waiting: {what}", err=True),
            )

    outcome = with_log(call.session, call.log, take_over)
    if not outcome.promoted and not outcome.noted:
        raise UsageError(f"link {call.link} has no mirror to promote" + _of(call.topics))
    if call.as_json:
        say(json.dumps(msgspec.to_builtins(outcome)))
    else:
        _show_outcome(outcome, patience)
    if outcome.trouble:
        say(
            "the source stays sealed, and does not know of the promotion yet:"
            f" {outcome.trouble}. Run the command again when it answers",
            err=True,
        )


def _show_outcome(outcome: PromotionOutcome, patience: PromotionPatience) -> None:
    if outcome.promoted:
        count = quantity(len(outcome.promoted), "topic")
        say(f"{count} promoted without loss: {some_of(outcome.promoted)}")
    if outcome.noted:
        say(f"promoted before, and the source knows it now: {some_of(outcome.noted)}")
    if not outcome.is_sealed:
        say(
            "the source is Apache Kafka, which can't be sealed. What was checked: for"
            f" {lag_text(patience.still_ms)} s, no partition there got a record or had an open"
            " transaction, and this cluster had all records. That producers stay stopped there was"
            " not checked"
        )


def _promote_now(call: _Promotion) -> None:
    session, log, name, topics, _, yes, as_json = call
    chosen = _chooser(topics)

    async def look(admin: Admin) -> tuple[MirrorsDescription, list[PossibleLoss]]:
        found = await admin.describe_mirrors()
        link_named(found, name)
        wanted = [
            each
            for each in found.mirrors
            if each.link == name and each.status is not MirrorStatus.PROMOTED and chosen(each.name)
        ]
        if not wanted:
            raise UsageError(f"link {name} has no mirror to promote" + _of(topics))
        return found, await admin.possible_losses(wanted)

    found, losses = ask(session, log, look)
    promoted = [*dict.fromkeys(each.topic for each in losses)]
    if not as_json:
        out().print(_losses_grid(losses))
        say("the source may have got more records since its last answer")
    for node, why in found.silent.items():
        say(f"broker {node} does not answer, so that what it leads is not known: {why}", err=True)
    if not yes:
        typer.confirm(f"promote {some_of(promoted)}?", abort=True)
    ask(session, log, lambda admin: admin.promote_mirrors_now(promoted))
    if as_json:
        may_be_missing = [msgspec.to_builtins(each) for each in losses]
        say(json.dumps({"promoted": promoted, "may_be_missing": may_be_missing}))
    else:
        say(f"{quantity(len(promoted), 'topic')} promoted: {some_of(promoted)}")


def _promote_app_now(call: _Promotion, app: str) -> None:
    async def look(admin: Admin) -> tuple[AppPlan | None, list[PossibleLoss]]:
        found = await admin.describe_mirrors()
        link = link_named(found, call.link)
        check_call(app, link, call.topics)
        mirrors = [
            each
            for each in found.mirrors
            if each.link == call.link and each.status is not MirrorStatus.PROMOTED
        ]
        if not mirrors:
            return None, []
        plan = await plan_promotion(admin, link, app, mirrors)
        return plan, await admin.possible_losses([e for e in mirrors if e.name in plan.topics])

    plan, losses = ask(call.session, call.log, look)
    if plan is None:
        _promoted_before(call, app)
        return
    if not call.as_json:
        _show_plan(plan, losses)
    if not call.yes:
        typer.confirm(f"cut and promote {some_of(plan.topics)}?", abort=True)
    ask(call.session, call.log, lambda admin: carry_out(admin, plan))
    if call.as_json:
        say(json.dumps(plan.as_json(losses)))
    else:
        say(
            f"app {app}: {quantity(len(plan.topics), 'topic')} promoted: {some_of(plan.topics)}."
            " What was cut off is in lost-and-found of the leaders' data directories"
        )


def _promoted_before(call: _Promotion, app: str) -> None:
    if call.as_json:
        say(json.dumps({"app": app, "promoted": []}))
    else:
        say(f"link {call.link} has no mirror to promote: app {app} was promoted before")


def _show_plan(plan: AppPlan, losses: Collection[PossibleLoss]) -> None:
    out().print(plan.grid(losses))
    say("the source may have got more records since its last answer")
    out_count = quantity(len(plan.cut.out), "committed transaction")
    say(f"the cut leaves out {out_count} of the app")
    for why, count in plan.reasons()[:REASONS_SHOWN]:
        say(f"  {count}: {why}")


def fail_back(
    context: typer.Context,
    name: LinkArgument,
    *,
    topics: TopicsOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Let topics of this cluster follow the link's source, which has led them since; ask first."""
    _check_asks(yes=yes, as_json=as_json)
    session: Session = context.obj
    security = broker_config(config, None).security
    chosen = _chooser(topics)

    async def look(admin: Admin) -> tuple[LinkDescription, dict[str, str]]:
        found = await admin.describe_mirrors()
        link = link_named(found, name)
        mirrors = {e.name for e in found.mirrors if e.status is not MirrorStatus.PROMOTED}
        ours = {each.name for each in await admin.list_topics()} - mirrors
        config = LinkConfig.of(link.settings)
        async with open_source(link, security) as source:
            there = [each.name for each in await source.admin().list_topics()]
        rules = replace(rules_of(config), of_apps=own_topics(apps_of(config), there))
        pairs = {here: each for each in there if (here := rules.name_of(each)) is not None}
        wanted = {here: each for here, each in pairs.items() if here in ours and chosen(here)}
        if not wanted:
            raise UsageError(
                f"no topic of this cluster can follow link {name}: none that its patterns"
                " name exists here without being a mirror" + _of(topics)
            )
        return link, wanted

    link, wanted = ask(session, log, look)
    following = sorted(wanted)
    if not yes:
        say(
            f"{some_of(following)} will take no records here any more. What only this cluster has"
            " in them is cut off; the leaders of their partitions keep it in lost-and-found of"
            f" their data directories. Cluster {link.source_cluster_id} leads them."
        )
        typer.confirm("fail back?", abort=True)

    async def follow(admin: Admin) -> None:
        async with open_source(link, security) as source:
            await admin.fail_back(name, source.admin(), wanted)

    ask(session, log, follow)
    if as_json:
        say(json.dumps({"following": following}))
    else:
        count = quantity(len(following), "topic")
        say(f"{count} of this cluster mirrored by link {name} from now on: {some_of(following)}")


def unseal(
    context: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Sealed topics.")],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also what the other cluster has taken over.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Let topics take records again that another cluster was to take over; ask first."""
    _check_asks(yes=yes, as_json=as_json)
    session: Session = context.obj
    if not yes:
        say(
            "first make sure that the other cluster does not promote them any more: there,"
            " `streamlog mirror describe` shows PROMOTING until it is resumed. Otherwise both"
            " clusters take records, and those of one of them are cut off later"
        )
        typer.confirm(f"unseal {some_of(topics)}?", abort=True)
    ask(session, log, lambda admin: admin.unseal_topics(topics, force=force))
    if as_json:
        say(json.dumps({"unsealed": topics}))
    else:
        say(f"{quantity(len(topics), 'topic')} unsealed: {some_of(topics)}")


def _check_asks(*, yes: bool, as_json: bool) -> None:
    # A question would be in the midst of what a program reads.
    if as_json and not yes:
        raise UsageError("--json asks no question: give --yes, too")


def _chooser(topics: str | None) -> Callable[[str], bool]:
    """Return whether a pattern names a topic; without a pattern, all are named."""
    if topics is None:
        return lambda _: True
    patterns = patterns_of("--topics", topics)
    return lambda name: any(each.fullmatch(name) for each in patterns)


def _of(topics: str | None) -> str:
    return "" if topics is None else f"; names have to match {topics!r} as a whole"


def _losses_grid(losses: Collection[PossibleLoss]) -> Grid:
    grid = Grid(
        *("partition", "end here", "source end", "missing", "source silent (s)"),
        "newest record here",
    )
    for each in losses:
        grid.add_row(
            f"{each.topic}-{each.partition}",
            number_text(each.log_end_offset),
            number_text(each.source_end_offset),
            number_text(each.missing_records),
            "?" if each.silent_ms is None else lag_text(each.silent_ms),
            "?" if each.newest_ms is None else time_text(each.newest_ms),
        )
    return grid


def login_here(link: LinkDescription, security: SecurityConfig) -> Security | None:
    """Return the login of a link, with what it refers to on this machine.

    Raises:
        UsageError: these settings do not allow it, or it can't be read.
    """
    # Others have written the settings: they must not choose which file of this user is sent where.
    try:
        return login_of(link.settings, security)
    except ConfigError as error:
        raise UsageError(
            f"link {link.name}: {error}. Here, --config FILE gives the settings of a node"
        ) from error


@asynccontextmanager
async def open_source(link: LinkDescription, security: SecurityConfig) -> AsyncIterator[Log]:
    """Open the source of a link with the link's own login.

    Raises:
        UsageError: the address leads to another cluster than when the link was created, or its
            login refers to what these settings do not allow or can't be read here.
    """
    url = f"kafka://{link.settings['bootstrap.servers']}"
    async with Log.open(url, security=login_here(link, security)) as source:
        # What an address leads to may change; equal names there mean nothing then.
        if source.cluster_id != link.source_cluster_id:
            raise UsageError(
                f"link {link.name} is to cluster {link.source_cluster_id}, and {url} leads to"
                f" {source.cluster_id}"
            )
        yield source


def link_named(found: MirrorsDescription, name: str) -> LinkDescription:
    """Return a link. Raises UsageError if there is none of this name."""
    for each in found.links:
        if each.name == name:
            return each
    raise UsageError(no_link(name, found))


def no_link(name: str, found: MirrorsDescription) -> str:
    """Return the message for a name that no link has."""
    names = [each.name for each in found.links]
    return f"there is no link {name!r}: " + (
        f"the links are {', '.join(names)}" if names else "there are no links"
    )


def number_text(value: int | None) -> str:
    """Return a number; `?` if it is not known."""
    return "?" if value is None else str(value)


def lag_text(lag_ms: int) -> str:
    """Return a time in seconds."""
    return f"{lag_ms / 1000:.1f}"


def time_text(wall_ms: int) -> str:
    """Return a time of day in UTC; empty for none."""
    if not wall_ms:
        return ""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
