"""Workers: a consumer group whose members run the tasks, agents and schedules of an app.

`assignment/rebalance_plan` decides, purely, which task runs where. The other modules are shell:
they read the log, call `Task.process`, write the results, and commit in an order that is safe in a
crash at any point. What a record means is decided in `processing/`.
"""

from __future__ import annotations
