"""A double of `_bulk`, for tests that run without a JVM.

It knows versions (`external_gte`), creation, deletion, and fields of one type as OpenSearch 2.17
does: `test_opensearch.py` sends equal requests to it and to OpenSearch, and compares the answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

Document = dict[str, Any]


class BulkDouble:
    """The indexes of a server, in memory."""

    def __init__(self) -> None:
        self.indexes: dict[str, dict[str, tuple[int, Document | None]]] = {}
        """By index and id: the version, and the document unless it was deleted."""
        self.types: dict[tuple[str, str], type] = {}
        """The type of a field, by its first value."""
        self.streams: set[str] = set()
        self.has_room: Callable[[str], bool] = lambda _: True
        """Whether an action of an id is taken; else it is answered with 429."""
        self.before: Callable[[bytes], Response | None] = lambda _: None
        """Answers a whole request, if it returns an answer."""
        self.requests: list[tuple[dict[str, str], bytes]] = []

    def documents(self, index: str) -> dict[str, Document]:
        """Return the documents of an index by id."""
        found = self.indexes.get(index, {})
        return {key: document for key, (_, document) in found.items() if document is not None}

    async def respond(self, request: Request) -> Response:
        body = await request.body()
        self.requests.append((dict(request.headers), body))
        return self.before(body) or self.answer(body)

    def answer(self, body: bytes) -> Response:
        items = [self._take(*each) for each in _parsed(body)]
        errors = any("error" in next(iter(item.values())) for item in items)
        return JSONResponse({"errors": errors, "items": items})

    def _take(self, op: str, head: dict[str, Any], document: Document | None) -> Document:
        rows = self.indexes.setdefault(head["_index"], {})
        before = rows.get(head["_id"], (-1, None))
        refused = self._refusal(op, head, document, before)
        if refused is not None:
            return {op: refused}
        rows[head["_id"]] = (head.get("version", 1), document)
        if op == "delete" and before[1] is None:
            return {op: {"status": 404}}
        return {op: {"status": 201 if before[1] is None else 200}}

    def _refusal(
        self,
        op: str,
        head: dict[str, Any],
        document: Document | None,
        before: tuple[int, Document | None],
    ) -> Document | None:
        index, key = head["_index"], head["_id"]
        if not self.has_room(key):
            return _error(429, "rejected_execution_exception", "no room")
        if index in self.streams and op != "create":
            reason = "only write ops with an op_type of create are allowed in data streams"
            return _error(400, "illegal_argument_exception", reason)
        for name, value in (document or {}).items():
            first = self.types.setdefault((index, name), type(value))
            if first is int and not isinstance(value, int):
                reason = f"failed to parse field [{name}] of type [long]"
                return _error(400, "mapper_parsing_exception", reason)
        reason = ""
        if op == "create" and before[1] is not None:
            reason = f"[{key}]: version conflict, document already exists"
        elif op != "create" and before[0] > head["version"]:
            reason = (
                f"[{key}]: version conflict, current version [{before[0]}] is higher than the one "
                f"provided [{head['version']}]"
            )
        return _error(409, "version_conflict_engine_exception", reason) if reason else None


def _error(status: int, kind: str, reason: str) -> Document:
    return {"status": status, "error": {"type": kind, "reason": reason}}


def _parsed(body: bytes) -> Iterator[tuple[str, dict[str, Any], Document | None]]:
    assert body.endswith(b"\n")
    lines = iter(body[:-1].split(b"\n"))
    for line in lines:
        ((op, head),) = json.loads(line).items()
        yield op, head, None if op == "delete" else json.loads(next(lines))
