"""A schema registry in a thread, of the standard library alone: ids, versions, and outages."""

from __future__ import annotations

import json
import ssl
import threading
from collections import Counter
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit
from uuid import UUID

Answer = tuple[int, Any]
NOT_FOUND: Answer = (404, {"error_code": 40403, "message": "Schema not found"})
NO_SUBJECT: Answer = (404, {"error_code": 40401, "message": "Subject not found"})


def without_defaults(body: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as all clients mean it: some leave out what others write."""
    found = {"schema": body["schema"]}
    if body.get("schemaType", "AVRO") != "AVRO":
        found["schemaType"] = body["schemaType"]
    if body.get("references"):
        found["references"] = body["references"]
    return found


class StubRegistry:
    """What the real one answers, as far as clients of these tests ask."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.schemas: list[dict[str, Any]] = []
        """Schemas by id; the first one has id 1."""
        self.subjects: dict[str, list[int]] = {}
        """Ids by version."""
        self.refusals: dict[str, list[str]] = {}
        """By subject, why new versions are incompatible."""
        self.asked: Counter[str] = Counter()
        """Requests by method and path."""
        self.is_down = False
        """Whether each request is answered with 503."""
        self.auth: str | None = None
        """The header `Authorization` that requests need."""
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or b"null")
                path = urlsplit(self.path).path
                registry.asked[f"{self.command} {path}"] += 1
                if registry.is_down:
                    status, found = 503, {"error_code": 50301, "message": "not now"}
                elif registry.auth and self.headers.get("Authorization") != registry.auth:
                    status, found = 401, {"error_code": 401, "message": "Unauthorized"}
                else:
                    parts = [unquote(part) for part in path.split("/")[1:]]
                    status, found = registry.answer(self.command, parts, body)
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815 - the names that the server calls

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self._tls is not None:
            # The handshake happens in the thread of the connection: one that fails stops no other.
            self._server.socket = self._tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_port}"

    def answer(self, method: str, parts: list[str], body: Any) -> Answer:  # noqa: PLR0911 - a table
        match (method, *parts):
            case ("POST", "subjects", subject, "versions"):
                return self.register(subject, without_defaults(body))
            case ("POST", "subjects", subject):
                return self.look_up(subject, without_defaults(body))
            case ("GET", "subjects", subject, "versions"):
                ids = self.subjects.get(subject)
                return NO_SUBJECT if ids is None else (200, [*range(1, len(ids) + 1)])
            case ("GET", "subjects", subject, "versions", version):
                ids = self.subjects.get(subject, [])
                at = len(ids) if version == "latest" else int(version)
                return self.version(subject, at) if 1 <= at <= len(ids) else NO_SUBJECT
            case ("GET", "schemas", "ids", number):
                at = int(number)
                return (200, self.content(at)) if 1 <= at <= len(self.schemas) else NOT_FOUND
            case ("GET", "schemas", "guids", guid):
                ids = [at for at in range(1, len(self.schemas) + 1) if self.guid(at) == guid]
                return (200, self.content(ids[0])) if ids else NOT_FOUND
            case ("GET", "config", *_):
                return 200, {"compatibilityLevel": "BACKWARD"}
            case ("POST", "compatibility", "subjects", subject, *_):
                messages = self.refusals.get(subject, [])
                return 200, {"is_compatible": not messages, "messages": messages}
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def register(self, subject: str, body: Any) -> Answer:
        if subject in self.refusals and body not in [
            self.schemas[i - 1] for i in self.ids(subject)
        ]:
            reasons = "; ".join(self.refusals[subject])
            return 409, {"error_code": 409, "message": f"Schema being registered: {reasons}"}
        if body not in self.schemas:
            self.schemas.append(body)
        found = self.schemas.index(body) + 1
        if found not in self.ids(subject):
            self.subjects.setdefault(subject, []).append(found)
        return self.version(subject, self.ids(subject).index(found) + 1)

    def look_up(self, subject: str, body: Any) -> Answer:
        if subject not in self.subjects:
            return NO_SUBJECT
        for at, found in enumerate(self.subjects[subject], 1):
            if self.schemas[found - 1] == body:
                return self.version(subject, at)
        return NOT_FOUND

    def ids(self, subject: str) -> list[int]:
        return self.subjects.get(subject, [])

    def version(self, subject: str, version: int) -> Answer:
        found = self.subjects[subject][version - 1]
        named = {"subject": subject, "version": version, "id": found}
        return 200, {**named, **self.content(found)}

    def content(self, schema_id: int) -> dict[str, Any]:
        return {"guid": self.guid(schema_id), **self.schemas[schema_id - 1]}

    def guid(self, schema_id: int) -> str:
        text = json.dumps(self.schemas[schema_id - 1], sort_keys=True)
        return str(UUID(bytes=md5(text.encode(), usedforsecurity=False).digest()))
