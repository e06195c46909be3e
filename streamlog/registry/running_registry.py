"""Running registry: serves the schema registry of a broker, if its settings ask for it.

Rule: the server's library and those of the formats are extras, so they are imported only here, and
only on request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker


@asynccontextmanager
async def serve_if_configured(broker: Broker) -> AsyncIterator[str | None]:
    """Serve the registry at `schema.registry.listener` in the block; yields its URL, or None.

    Raises:
        ConfigError: an extra is not installed, or a setting of the registry can't be used.
        ListenError: the address is taken, or does not belong to this machine.
    """
    address = broker.directory.config.registry.listener
    if not address:
        yield None
        return
    # Most brokers serve no registry: they neither need the extras nor wait for their imports.
    try:
        from streamlog.registry.rest_server import serve_registry  # noqa: PLC0415 - an extra, loaded on request
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"schema.registry.listener={address} needs an extra that is not installed"
            f" ({error.name} is missing): {install_command('registry')}"
        ) from error
    async with serve_registry(broker, address) as url:
        broker.directory.listener.registry_url = url
        yield url
