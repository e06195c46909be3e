"""The state of tasks on this worker: restore, changelogs, standbys, global tables."""
