"""`streamlog doctor --log URL [-A MODULE]`: prints what is wrong with a running log, and an app.

`adviser` looks and judges; here its findings become text or JSON.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from streamlog.adviser import Diagnosis, LogView, advise
from streamlog.adviser.app_look import look_at_app
from streamlog.adviser.log_look import LogLook
from streamlog.cli.session import Session, run
from streamlog.cli.terminal import log_warnings, say
from streamlog.errors import quantity
from streamlog.log import Log

if TYPE_CHECKING:
    from streamlog.adviser import AppView
    from streamlog.app import App
    from streamlog.topology import Topology

WIDTH = 100


def examine(
    session: Session,
    log: str | None,
    *,
    module: str,
    watch_s: float,
    sample: int,
    as_json: bool,
) -> bool:
    """Examine a log, and the session's app on it; print the findings.

    Args:
        session: the options before the command.
        log: the URL of the command's option.
        module: what `-A` names, for the commands that the findings give.
        watch_s: how long to observe the log, in seconds.
        sample: how many records of each input partition to read.
        as_json: whether to print JSON.

    Returns:
        Whether nothing is wrong.
    """
    app, topology = session.app, None
    if app is not None:
        with log_warnings():
            topology = app.program().topology
    url = session.log_url(log)
    if watch_s and not as_json:
        say(f"observing {url} for {watch_s:g} s", err=True)

    async def look() -> tuple[LogView, AppView | None]:
        async with session.open(log) as opened:
            view = await LogLook(opened, url=url).view(watch_s)
            if app is None or topology is None:
                return view, None
            return view, await look_at_app_of(
                (app, topology), opened, view, module=module, sample=sample
            )

    view, of_app = run(look())
    found = advise(view, of_app)
    if as_json:
        say(findings_json(view, found))
    else:
        _show(view, of_app, found)
    return not found


async def look_at_app_of(
    of: tuple[App, Topology], log: Log, view: LogView, *, module: str, sample: int
) -> AppView:
    """Return an app as the adviser looks at it.

    Args:
        of: the app, and its topology.
        log: the log.
        view: what is known of the log.
        module: what `-A` names, for the commands that the findings give.
        sample: how many records of each input partition to read.
    """
    app, topology = of
    return await look_at_app(
        topology,
        log,
        view,
        module=module,
        guarantee=app.guarantee,
        commit_interval_ms=app.commit_interval_ms,
        standby_replicas=app.policy.standbys,
        records=sample,
    )


def findings_json(view: LogView, found: Sequence[Diagnosis]) -> str:
    """Return findings, and what could not be looked at, as one JSON object."""
    return json.dumps(
        {
            "healthy": not found,
            "findings": [msgspec.to_builtins(each) for each in found],
            "unseen": list(view.unseen),
            "watched_s": round(view.watched_s, 3),
        }
    )


def _show(view: LogView, app: AppView | None, found: Sequence[Diagnosis]) -> None:
    for each in found:
        say(f"{each.severity}: {each.code}: {each.where}")
        say(_paragraph("problem:", each.problem))
        say(_paragraph("if left:", each.outlook))
        # Not wrapped: it is to be copied.
        say(f"  mend:    {each.remedy}")
        say("")
    for each_unseen in view.unseen:
        say(f"not seen: {each_unseen}")
    looked = [
        quantity(len(view.brokers), "broker"),
        quantity(len(view.topics), "topic"),
        quantity(len(view.groups), "group"),
    ]
    of_app = "" if app is None else f", app {app.topology.app_id}"
    critical = sum(each.severity == "critical" for each in found)
    result = (
        f"{quantity(len(found), 'finding')}, {critical} of them critical"
        if found
        else "nothing is wrong" + (" with what was seen" if view.unseen else "")
    )
    say(f"{', '.join(looked)}{of_app}: {result}")


def _paragraph(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"  {label:9}",
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )
