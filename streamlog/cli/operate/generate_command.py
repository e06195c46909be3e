"""`streamlog generate`: files for Prometheus and Grafana, printed to standard output."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from streamlog.errors import UsageError
from streamlog.generate.alerts import DOCS, AlertLimits, alert_rules
from streamlog.generate.grafana import Board, dashboard
from streamlog.generate.scrape import scrape_config

DEFAULTS = AlertLimits()
DURATION = re.compile(r"(?=\d)(?:\d+y)?(?:\d+w)?(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?(?:\d+ms)?")
"""A duration as Prometheus writes it."""
TARGET = re.compile(r"[^\s/]+:\d+")

generate = typer.Typer(
    help="Files for Prometheus and Grafana, printed to standard output.", no_args_is_help=True
)


@generate.command("grafana")
def generate_grafana(
    board: Annotated[Board, typer.Argument(help="The dashboard.")] = Board.CLUSTER,
) -> None:
    """Print a dashboard for Grafana, as JSON to import."""
    typer.echo(dashboard(board), nl=False)


@generate.command("alerts")
def generate_alerts(
    *,
    pending: Annotated[
        str,
        typer.Option("--for", metavar="DURATION", help="How long critical conditions last first."),
    ] = DEFAULTS.pending,
    pending_warning: Annotated[
        str,
        typer.Option("--for-warning", metavar="DURATION", help="How long those of warnings do."),
    ] = DEFAULTS.pending_warning,
    lag: Annotated[
        float,
        typer.Option("--lag-seconds", min=0, help="Lag of a group or connector that is too much."),
    ] = DEFAULTS.lag_seconds,
    disk: Annotated[
        float, typer.Option("--disk-share", min=0, max=1, help="Share of a disk to keep usable.")
    ] = DEFAULTS.disk_share,
    idle: Annotated[
        float,
        typer.Option("--idle-share", min=0, max=1, help="Idle share that a broker must have."),
    ] = DEFAULTS.idle_share,
    flush: Annotated[
        float, typer.Option("--flush-seconds", min=0, help="99th percentile of syncs.")
    ] = DEFAULTS.flush_seconds,
    request: Annotated[
        float,
        typer.Option("--request-seconds", min=0, help="99th percentile of Produce requests."),
    ] = DEFAULTS.request_seconds,
    slot: Annotated[
        float,
        typer.Option("--slot-bytes", min=0, help="WAL that a database keeps for a connector."),
    ] = DEFAULTS.slot_bytes,
    docs: Annotated[
        str, typer.Option("--docs", metavar="URL", help="The documentation, for runbook links.")
    ] = DOCS,
) -> None:
    """Print alert rules for Prometheus, with links to the runbooks."""
    limits = AlertLimits(
        pending=_duration("--for", pending),
        pending_warning=_duration("--for-warning", pending_warning),
        idle_share=idle,
        lag_seconds=lag,
        disk_share=disk,
        flush_seconds=flush,
        request_seconds=request,
        slot_bytes=slot,
    )
    typer.echo(alert_rules(limits, docs=docs.rstrip("/")), nl=False)


@generate.command("prometheus")
def generate_prometheus(
    *,
    brokers: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="HOST:PORT", help="A broker's web.listener; repeatable."),
    ] = None,
    workers: Annotated[
        list[str] | None,
        typer.Option("--worker", metavar="HOST:PORT", help="A worker's --web; repeatable."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="A label that tells clusters apart."),
    ] = None,
    interval: Annotated[
        str, typer.Option("--interval", metavar="DURATION", help="Between two scrapes.")
    ] = "15s",
) -> None:
    """Print a prometheus.yml that scrapes brokers and workers, with the alerts beside it."""
    if not brokers and not workers:
        raise UsageError("generate prometheus needs --broker HOST:PORT or --worker HOST:PORT")
    for target in (*(brokers or ()), *(workers or ())):
        if not TARGET.fullmatch(target):
            raise UsageError(f"{target!r} is not HOST:PORT, such as a.example.org:9300")
    config = scrape_config(
        brokers or (),
        workers or (),
        cluster=cluster,
        interval=_duration("--interval", interval),
    )
    typer.echo(config, nl=False)


def _duration(option: str, text: str) -> str:
    if not DURATION.fullmatch(text):
        raise UsageError(f"{option} is {text!r}: give a duration of Prometheus, such as 90s or 10m")
    return text
