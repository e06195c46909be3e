"""The console of a worker: shells that look at the worker, its records and its dead letters.

`worker_site` puts them together; the pages are in `app_pages`, and make HTML without I/O. Rule of
the package: what a page costs the worker has a bound, in time, in records and in characters.
"""

from __future__ import annotations
