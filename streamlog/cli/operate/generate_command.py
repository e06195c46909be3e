"""`streamlog generate`: files for the programs around a cluster, printed to standard output."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from streamlog.errors import UsageError
from streamlog.generate.alerts import DOCS, AlertLimits, alert_rules
from streamlog.generate.containers import compose, containerfile
from streamlog.generate.grafana import Board, dashboard
from streamlog.generate.kubernetes import broker_manifests, worker_manifests
from streamlog.generate.scrape import scrape_config
from streamlog.generate.systemd import UnitKind, systemd_unit
from streamlog.metrics.build_info import DISTRIBUTION, release

DEFAULTS = AlertLimits()
DURATION = re.compile(r"(?=\d)(?:\d+y)?(?:\d+w)?(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?(?:\d+ms)?")
"""A duration as Prometheus writes it."""
NAME = re.compile(r"[\w.-]+")
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
QUANTITY = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?")
EXTRAS = re.compile(r"[a-z-]+(,[a-z-]+)*")
CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{22}")
PORT_MAX = 65_000
VOTERS = (1, 3, 5)
TARGET = re.compile(r"[^\s/]+:\d+")

generate = typer.Typer(
    help="Files for Prometheus, Grafana, systemd, containers and Kubernetes, printed to standard"
    " output.",
    no_args_is_help=True,
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


UserOption = Annotated[
    str, typer.Option("--user", help="The system's user and group that run the process.")
]
ImageOption = Annotated[
    str, typer.Option("--image", metavar="NAME", help="The image that the Containerfile built.")
]
StorageOption = Annotated[
    str, typer.Option("--storage", metavar="QUANTITY", help="The size of each volume.")
]
ClusterIdOption = Annotated[
    str | None,
    typer.Option("--cluster-id", metavar="ID", help="The cluster's id. Default: a new one."),
]


@generate.command("systemd")
def generate_systemd(
    context: typer.Context,
    service: Annotated[UnitKind, typer.Argument(help="What the unit runs.")],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="The name of the unit, and of its directory below /var/lib. Default: streamlog for"
            " a broker, else streamlog-SERVICE.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The file with the settings of the broker or the Connect service. Default:"
            " /etc/streamlog/SERVICE.properties.",
        ),
    ] = None,
    log: Annotated[
        str, typer.Option("--log", metavar="URL", help="The log of a worker.")
    ] = "kafka://localhost:9092",
    user: UserOption = "streamlog",
    docs: Annotated[
        str, typer.Option("--docs", metavar="URL", help="The documentation, for the unit to name.")
    ] = "",
) -> None:
    """Print a unit that runs a broker, a worker (with -A MODULE), or a Connect service."""
    named = name or ("streamlog" if service is UnitKind.BROKER else f"streamlog-{service}")
    if not NAME.fullmatch(named):
        raise UsageError(f"--name {named!r}: use letters, digits and .-_")
    settings = str(config or f"/etc/streamlog/{service}.properties")
    # A worker's module is where Python finds it now; the unit runs in the directory of the state.
    is_worker = service is UnitKind.WORKER
    unit = systemd_unit(
        service,
        _unit_command(service, _module(context), settings=settings, log=log),
        name=named,
        user=user,
        docs=docs,
        environment={"PYTHONPATH": str(Path.cwd())} if is_worker else {},
    )
    typer.echo(unit, nl=False)


def _unit_command(service: UnitKind, module: str | None, *, settings: str, log: str) -> list[str]:
    # The unit runs the program that runs this command, with the packages of its environment.
    program = str(Path(sys.executable).with_name("streamlog"))
    if service is UnitKind.BROKER:
        return [program, "broker", "--config", settings]
    if service is UnitKind.CONNECT:
        return [program, "connect", settings]
    if module is None:
        raise UsageError(
            "the unit of a worker needs its app: streamlog -A MODULE generate systemd worker"
        )
    return [program, "-A", module, "worker", "--log", log]


def _module(context: typer.Context) -> str | None:
    # -A is an option of the root, whose context is the outermost one.
    module = context.find_root().params.get("app")
    return None if module is None else str(module)


@generate.command("containerfile")
def generate_containerfile(
    *,
    extras: Annotated[
        str, typer.Option("--extras", help="The extras to install, separated by commas.")
    ] = "objects,registry,web",
) -> None:
    """Print a Containerfile for brokers, apps and connectors."""
    if not EXTRAS.fullmatch(extras):
        raise UsageError(f"--extras {extras!r}: give names, separated by commas")
    typer.echo(containerfile(distribution=DISTRIBUTION, release=release(), extras=extras), nl=False)


@generate.command("compose")
def generate_compose(
    *,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=5, help="How many brokers.")] = 3,
    image: ImageOption = "streamlog",
    cluster_id: ClusterIdOption = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=1,
            max=PORT_MAX,
            help="The port of the first broker on this machine; the others have the next ones.",
        ),
    ] = 9092,
) -> None:
    """Print a compose.yaml of brokers, Prometheus and Grafana."""
    text = compose(brokers=brokers, image=image, cluster=_cluster_id(cluster_id), first_port=port)
    typer.echo(text, nl=False)


@generate.command("kubernetes")
def generate_kubernetes(
    context: typer.Context,
    *,
    name: Annotated[
        str, typer.Option("--name", help="The name of the StatefulSet and of its Service.")
    ] = "streamlog",
    image: ImageOption = "streamlog",
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, max=100, help="How many brokers or workers.")
    ] = 3,
    storage: StorageOption = "100Gi",
    cluster_id: ClusterIdOption = None,
    log: Annotated[
        str, typer.Option("--log", metavar="URL", help="The log of workers.")
    ] = "kafka://streamlog:9092",
) -> None:
    """Print manifests for brokers or, with -A MODULE, for the workers of an app."""
    if not LABEL.fullmatch(name):
        raise UsageError(f"--name {name!r}: use small letters, digits and -")
    if not QUANTITY.fullmatch(storage):
        raise UsageError(f"--storage {storage!r}: give a quantity of Kubernetes, such as 100Gi")
    module = _module(context)
    # An app's workers have this command, too, since both are one StatefulSet behind one Service.
    if module is not None:
        text = worker_manifests(
            name=name,
            image=image,
            workers=replicas,
            storage=storage,
            arguments=["-A", module, "worker", "--log", log],
        )
    else:
        if replicas not in VOTERS:
            raise UsageError(f"--replicas {replicas}: all brokers vote, so give 1, 3 or 5")
        cluster = _cluster_id(cluster_id)
        text = broker_manifests(
            name=name, image=image, brokers=replicas, storage=storage, cluster=cluster
        )
    typer.echo(text, nl=False)


def _cluster_id(given: str | None) -> str:
    if given is not None and not CLUSTER_ID.fullmatch(given):
        raise UsageError(f"--cluster-id {given!r} is not the id of a cluster: 22 letters of base64")
    from streamlog.broker.storage.catalog import new_id  # noqa: PLC0415 - only here

    return given or new_id()


def _duration(option: str, text: str) -> str:
    if not DURATION.fullmatch(text):
        raise UsageError(f"{option} is {text!r}: give a duration of Prometheus, such as 90s or 10m")
    return text
