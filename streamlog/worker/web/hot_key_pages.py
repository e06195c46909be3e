"""Hot key pages: `/hot-keys?seconds=10&top=20` counts keys for some seconds and answers in JSON.

Rule: a request costs the worker one count of each polled batch while it lasts; their number and
length are bounded. Not done here: the counting (`health/hot_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamlog.errors import SerdeError
from streamlog.metrics.heavy_hitters import Hitter
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.worker.health.hot_keys import HotKeys
from streamlog.worker.web.web_server import MALFORMED, json_answer

SECONDS = (0.1, 10.0, 60.0)
"""The least, default and largest duration."""
TOP = (1, 20, 1_000)
"""The least, default and largest number of keys."""
LISTENERS_MAX = 4
"""Requests that may count at the same time."""
BUSY = 503


def hot_key_route(hot_keys: HotKeys, topics: Mapping[str, TopicSpec]) -> Route:
    """Return the route; `topics` says how keys are read."""

    async def answer(request: Request) -> Response:
        try:
            seconds = _number(request, "seconds", SECONDS)
            top = int(_number(request, "top", TOP))
        except ValueError as error:
            return json_answer({"error": str(error)}, MALFORMED)
        if hot_keys.listeners >= LISTENERS_MAX:
            text = f"{LISTENERS_MAX} requests count keys already: try again when they have ended"
            return json_answer({"error": text}, BUSY)
        found = await hot_keys.count(seconds, top)
        return json_answer(
            {
                "seconds": seconds,
                "topics": {
                    topic: {
                        "records": total,
                        "keys": [_shown(topics.get(topic), hitter) for hitter in hitters],
                    }
                    for topic, (total, hitters) in found.items()
                },
            }
        )

    return Route("/hot-keys", answer)


def _number(request: Request, name: str, bounds: tuple[float, float, float]) -> float:
    """Return a number of the query, or its default.

    Raises:
        ValueError: it is not a number, or out of range.
    """
    least, default, most = bounds
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None
    if not least <= found <= most:
        raise ValueError(f"{name}={text}: use {least:g} to {most:g}")
    return found


def _shown(spec: TopicSpec | None, hitter: Hitter[bytes | None]) -> dict[str, object]:
    """Return a key as JSON, with its count and the most by which that is too large."""
    return {"key": _key(spec, hitter.item), "count": hitter.count, "error": hitter.error}


def _key(spec: TopicSpec | None, key: bytes | None) -> object:
    if key is None:
        return None
    if spec is not None:
        try:
            return msgspec.to_builtins(spec.key.loads(key), enc_hook=str)
        except (SerdeError, ValueError, TypeError):
            pass  # Such keys are shown as they are.
    return key.decode(errors="backslashreplace")
