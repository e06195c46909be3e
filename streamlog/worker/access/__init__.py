"""Rows of tables from anywhere: asked of this worker's tasks, or of the worker that has them.

`rounds_of` is what is asked, `local` answers from tasks that run here, `routed` finds who is to
be asked. The way over HTTP is in `worker/web`.
"""

from __future__ import annotations
