"""The worker's HTTP server: whether it lives, whether it is ready, what it counts.

Comes with the extra `[web]` and is imported only by a worker that is told where to listen.
`server` carries (uvicorn in the worker's own loop), `pages` answers (starlette), `metrics`
shows the worker's figures (prometheus-client). Rule of the room: nothing here changes what a
worker does; it looks, and it asks through doors that others opened.
"""

from __future__ import annotations
