"""History: the topology of an app over what a log holds, stage by stage, without workers.

`plan` (pure) says what runs in which order and what will be equal to what; `task_run` is one task
over its inputs; `staging` is what lies between two stages; `local` runs a plan in this process, and
is what any other engine is held against. Rule of the room: the same `Task` as everywhere; what is
run is a function of the plan and the log, so a part that is done again gives the same again.
"""

from __future__ import annotations
