"""The worker: a consumer group whose members run tasks, agents and schedules.

`placement` decides (pure) which task runs where; everything else in this room is shell: it
reads the log, feeds `Task.process`, writes what comes out and commits in an order that a
crash at any point can't break. Deciding what a record means is the engine's business.
"""

from __future__ import annotations
