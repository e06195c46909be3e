"""The console: what operators see of a log in a browser, served by brokers and workers.

`pages` and `markup` make HTML out of views, without I/O; `log_watch` looks at the log;
`console_site` answers requests. The server renders pages, and updates them by server-sent events.

Rules of the package: text becomes HTML only through `markup`, which escapes it; every list is
bounded and paged; a page never waits for a look at the whole log; every change is written down.
"""

from __future__ import annotations
