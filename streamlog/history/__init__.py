"""History: runs the topology of an app over what a log holds, stage by stage, without workers.

`plan` (pure) decides the order of the stages and how their rows equal a live run's. `task_run` runs
one task over its inputs, `staging` holds the rows between two stages, and `local_run` runs a plan
in this process, the reference for every other engine. Rule of the room: tasks are the same `Task`
as everywhere, and results are a function of the plan and the log, so a repeated part gives the same
results.
"""

from __future__ import annotations
