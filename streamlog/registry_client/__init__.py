"""Registry client: schemas of a schema registry, over its REST API.

`registry_settings` says where the registry is, `rest_connection` sends requests to one of its
servers, `rest_api` gives them names and types, and `schema_book` is the source of an app's
serdes: a cache, with one request per unknown schema.

Rule: calls block, so they run in threads of their own, never on an event loop. Not done here: the
registry itself.
"""

from __future__ import annotations

from streamlog.registry_client.registry_settings import RegistrySettings
from streamlog.registry_client.rest_api import RegisteredVersion, RegistryClient
from streamlog.registry_client.schema_book import SchemaBook

__all__ = ["RegisteredVersion", "RegistryClient", "RegistrySettings", "SchemaBook"]
