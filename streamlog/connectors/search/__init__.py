"""Search: writes a topic to indexes of Elasticsearch and OpenSearch, or to their data streams.

Both speak one protocol, `_bulk`. A document's id is the record's key, and its version the record's
offset, so a record that is written again changes nothing, and an older one never replaces a newer
one. That is done by each record alone, whatever flush it comes in.

Rule of the room: `bulk_actions` is pure, and decides what is sent and what an answer means;
`search_task` sends (httpx, the extra `http`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from streamlog.connect import Effect, Secret, Sink, SinkContext, SinkTask
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.http.http_client import check_url
from streamlog.connectors.search.bulk_actions import (
    TIMESTAMP_FIELD,
    BulkRules,
    DocumentForm,
    DocumentId,
    IndexName,
    OnTombstone,
)
from streamlog.connectors.search.search_task import SearchTask
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError

__all__ = ["Search"]

BODY_BYTES_MAX = 100 * 1024 * 1024
"""The largest `body_bytes`: what the servers take by default (`http.max_content_length`)."""


class Search(Sink[object, object], frozen=True, kw_only=True):
    """Writes documents to Elasticsearch 7 or later, and OpenSearch.

    Exactly once: a document's id is the record's key, its version the record's offset, so writing a
    record again changes nothing. A tombstone deletes the document of its key.

    Attributes:
        urls: the nodes, such as "https://search-1:9200"; if one does not answer, the next is used.
        index: the index, of `{topic}` and `{timestamp:%Y.%m.%d}` (UTC), in lower case.
        data_stream: whether `index` is a data stream, which takes new documents only.
        ids: "key": a document for each key; a record without a key has the id of its offset,
            `topic+partition+offset`. "offset": a document for each record. None: "offset" for a
            data stream, else "key".
        tombstones: what a record without a value does: "delete", "ignore" or "fail" (its error
            policy decides). None: "delete" if its key alone says where its document is, else
            "ignore".
        document: "fields": the fields of the value, or `value` if it has none; "json": the value as
            it lies in the log, which has to be a JSON object.
        timestamp_field: the field that gets the record's time if the value lacks it. None:
            "@timestamp" for a data stream, else no field.
        user: the user of basic authentication.
        password: the user's password.
        api_key: an API key, encoded, instead of a user.
        tls: the authority that signs the nodes' certificates, and a certificate of the client.
        body_bytes: the largest body of a request; a larger document is sent alone.
        timeout: how long an answer may take.
    """

    effect: ClassVar[Effect] = "repeatable"
    incidental: ClassVar[frozenset[str]] = frozenset(
        {"api_key", "body_bytes", "flush", "password", "timeout", "tls", "urls", "user"}
    )

    urls: tuple[str, ...]
    index: str = "{topic}"
    data_stream: bool = False
    ids: DocumentId | None = None
    tombstones: OnTombstone | None = None
    document: DocumentForm = "fields"
    timestamp_field: str | None = None
    user: str | None = None
    password: Secret | None = None
    api_key: Secret | None = None
    tls: ClientTls | None = None
    body_bytes: int = 5 * 1024 * 1024
    timeout: Dur = "60s"

    @property
    def rules(self) -> BulkRules:
        """What is made of a record, with the defaults that depend on other settings.

        Raises:
            ConfigError: `index` is no template of an index.
        """
        index = IndexName(self.index)
        ids = self.ids or ("offset" if self.data_stream else "key")
        # Only then the key alone leads to the document.
        can_delete = ids == "key" and not index.has_time
        return BulkRules(
            index=index,
            creates=self.data_stream,
            ids=ids,
            tombstones=self.tombstones or ("delete" if can_delete else "ignore"),
            document=self.document,
            timestamp_field=self.timestamp_field or (TIMESTAMP_FIELD if self.data_stream else None),
        )

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting, and what to write instead.
        """
        if not self.urls:
            raise ConfigError("urls: name one node at least, such as 'https://search:9200'")
        for url in self.urls:
            check_url(url, "urls", "user and password, or api_key")
        _check_documents(self.rules)
        if self.user is not None and self.api_key is not None:
            raise ConfigError("user and api_key are two ways to log in: set one of them")
        if (self.user is None) != (self.password is None):
            raise ConfigError("user and password go together: set both, or neither")
        if self.tls is not None:
            _check_tls(self.tls, self.urls)
        if not 0 < self.body_bytes <= BODY_BYTES_MAX:
            raise ConfigError(f"body_bytes={self.body_bytes}: it has to be 1 to {BODY_BYTES_MAX}")
        if not duration_ms(self.timeout):
            raise ConfigError("timeout has to be longer than 0 ms")

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet.

        Raises:
            ConfigError: a file of `tls` can't be read.
        """
        return SearchTask(
            rules=self.rules,
            urls=self.urls,
            api_key=self.api_key,
            login=None if self.password is None else (self.user or "", self.password),
            verify=True if self.tls is None else self.tls.context(),
            body_bytes=self.body_bytes,
            timeout=self.timeout,
            context=context,
        )


def _check_documents(rules: BulkRules) -> None:
    if rules.creates and rules.ids == "key":
        raise ConfigError(
            "ids='key' needs documents that can be replaced, and a data stream has none: set "
            "ids='offset', or write to an index"
        )
    if rules.tombstones != "delete":
        return
    if rules.ids == "offset":
        raise ConfigError("tombstones='delete' needs ids='key': by an offset no document is found")
    if rules.index.has_time:
        raise ConfigError(
            "tombstones='delete' needs an index without {timestamp}: the time of a tombstone does "
            "not say in which index the document of its key is"
        )


def _check_tls(tls: ClientTls, urls: Sequence[str]) -> None:
    plain = [url for url in urls if not url.startswith("https:")]
    if plain:
        raise ConfigError(f"tls is set, and urls has {plain[0]!r} without TLS: write https://")
    tls.check()
