"""A broker's HTTP server: liveness, readiness, metrics for Prometheus, and the console.

It uses the workers' HTTP server (`worker/web`), the extra `[web]`. Rule: the console acts as the
broker, with all rights. So it is served without users only if the log is open to this machine
anyway: on an address that this machine alone reaches, by a broker without ACLs and passwords. Not
done here: the metrics, which every part of the broker declares in the registry of its directory.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from streamlog.broker.config.connections import listeners_of
from streamlog.broker.config.security import AUTHORIZER_NONE, PLAINTEXT
from streamlog.console.connect_desk import ConnectAccess, RemoteConnect
from streamlog.console.console_site import Console
from streamlog.console.log_watch import LogWatch
from streamlog.console.pages.page_parts import ROOT
from streamlog.errors import ConfigError
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.guarded_server import https_context
from streamlog.http_access.passwords import PasswordGuard, passwords_of
from streamlog.http_server import listen, serve
from streamlog.listening import is_local, parse_address
from streamlog.log import Log
from streamlog.properties import read_properties
from streamlog.registry_client import RegistrySettings
from streamlog.worker.health.worker_health import HealthReport
from streamlog.worker.web.web_server import leading_to, make_site, mounted

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from streamlog.broker.broker import Broker
    from streamlog.broker.cluster.figures import BrokerStatus
    from streamlog.broker.config.broker import BrokerConfig

OPEN_PATHS = frozenset({"/live", "/ready"})
"""A load balancer has no password."""

logger = logging.getLogger(__name__)


@asynccontextmanager
async def serve_health(broker: Broker, address: str) -> AsyncIterator[str]:
    """Serve at `address` in the block; yields the URL with the port that was picked.

    Raises:
        ConfigError: the address is not HOST:PORT, a file of users or certificates can't be used, or
            passwords would be sent in clear.
        ListenError: the address is taken, or does not belong to this machine.
    """
    config, clock = broker.directory.config, broker.clock
    access = HttpAccess(users_file=config.web_users, certificate=config.web_certificate)
    _check_passwords(address, access)
    passwords, tls = passwords_of(access, clock), https_context(access, clock)
    console = _console_of(broker, address)
    routes: Sequence[BaseRoute] = ()
    if console is not None:
        routes = (leading_to(f"{ROOT}/"), mounted(ROOT, console))
    with listen(address) as listener:
        site: ASGIApp = make_site(
            BrokerHealth(broker), broker.directory.metrics, more=routes, hosts=listener.hosts
        )
        if passwords is not None:
            site = PasswordGuard(site, passwords, is_open=OPEN_PATHS.__contains__)
        running = nullcontext() if console is None else console.running()
        # The console ends first: pages that are kept up to date would hold up the server's end.
        async with serve(site, listener, tls=tls), running:
            yield f"{access.scheme}://{listener.endpoint}"


def _check_passwords(address: str, access: HttpAccess) -> None:
    host, _ = parse_address(address, setting="web.listener")
    if access.users_file and not access.certificate and not is_local(host):
        raise ConfigError(
            f"web.listener={address}: other machines can reach this address, and passwords of"
            " web.users.file would be sent in clear: set web.certificate.file, or use 127.0.0.1"
        )


def _console_of(broker: Broker, address: str) -> Console | None:
    """Return the console; None if it would open the log to more than can use it already."""
    config = broker.directory.config
    why = "" if config.web_users else _lacks_users(config, address)
    if why:
        logger.info("no console at %s: %s, so it needs web.users.file", address, why)
        return None
    operators = None
    if config.web_users:
        # None unless named: a new user of the file reads, and changes nothing.
        operators = frozenset(each.strip() for each in config.web_operators.split(",")) - {""}
    watch = LogWatch(
        partial(Log.within, broker, client_id="streamlog-console"),
        url=lambda: "kafka://{}:{}".format(*broker.advertised),
        clock=broker.clock,
    )
    return Console(
        watch,
        broker.clock,
        operators=operators,
        registry=_registry_of(broker),
        connect=_connect_of(config),
    )


def _connect_of(config: BrokerConfig) -> RemoteConnect | None:
    return RemoteConnect(ConnectAccess.of(config.web_connect)) if config.web_connect else None


def _registry_of(broker: Broker) -> Callable[[], RegistrySettings | None]:
    """Return what returns where the registry is: the one of the settings, else this broker's.

    Raises:
        ConfigError: the setting is malformed.
    """
    given = broker.directory.config.web_registry
    if given:
        # A password belongs into a file, not into a setting that is shown.
        fixed = RegistrySettings.of(given if "://" in given else read_properties(given))
        return lambda: fixed

    def own() -> RegistrySettings | None:
        # Asked each time: the registry starts after the console.
        url = broker.directory.listener.registry_url
        return RegistrySettings.of(url) if url else None

    return own


def _lacks_users(config: BrokerConfig, address: str) -> str:
    host, _ = parse_address(address, setting="web.listener")
    if not is_local(host):
        return "other machines can reach this address"
    if config.security.authorizer != AUTHORIZER_NONE:
        return "this broker has ACLs"
    # A password at the listener would be worth nothing if this page needed none.
    if any(each.protocol != PLAINTEXT for each in listeners_of(config.security)):
        return "this broker's listeners are secured"
    return ""


class BrokerHealth:
    """Answers the health checks of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def live(self) -> HealthReport:
        """Report that the broker runs: one whose disk has failed ends, and does not answer."""
        return HealthReport(is_well=True, facts={"live": True, **_facts(self._broker.status())})

    def ready(self) -> HealthReport:
        """Report whether the broker is registered and unfenced with a controller that it knows.

        Lagging replicas are reported, but don't make it unready: clients need it all the more.
        """
        status = self._broker.status()
        lacking = status.partitions.under_replicated
        is_well = status.is_ready
        facts = {"ready": is_well, **_facts(status), "under_replicated": lacking}
        return HealthReport(is_well=is_well, facts=facts)


def _facts(status: BrokerStatus) -> dict[str, object]:
    return {
        "node": status.node_id,
        "state": status.state.value,
        "controller": status.quorum.leader_id,
        "epoch": status.quorum.epoch,
    }
