"""The worker's HTTP server: health, metrics, tables, and the pages of the app.

It needs the extra `[web]`; only a worker with an address to listen on imports it. `web_server`
runs uvicorn on the worker's event loop, and `table_pages` answers with starlette.

Rule: reads the worker's state through ports and never changes what the worker does.
"""

from __future__ import annotations
