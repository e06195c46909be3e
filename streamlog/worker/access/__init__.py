"""Access to the rows of tables, on this worker and on others.

`questions` holds the queries and answers. `routed_tables` answers them from the tasks of this
worker, and finds the worker to ask for other rows. The way over HTTP is in `worker/web`.
"""

from __future__ import annotations
