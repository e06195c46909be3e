"""Logger levels: `/admin/loggers`, where levels of loggers are shown and changed while they run.

The API has Log4j's names of levels; the loggers are Python's. Rule: only loggers that exist are
shown, and a level that is set holds for the loggers below its name as well, as in Kafka Connect.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from streamlog.clock import SystemClock
from streamlog.connect.herding.herder_requests import NOT_FOUND, ConnectRefusal

ROOT: Final = "root"
PYTHON_LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}
"""Log4j's names, and Python's levels."""
_NAMES: Final = {
    level: name for name, level in PYTHON_LEVELS.items() if name not in {"TRACE", "OFF"}
}
_lock: Final = threading.Lock()
_changed: Final[dict[str, tuple[str, int]]] = {}
"""The level that was set for each logger, as it was written, and when."""


def logger_levels() -> dict[str, dict[str, object]]:
    """Return the loggers with a level of their own, by name."""
    found = logging.root.manager.loggerDict.items()
    names = {name for name, each in found if isinstance(each, logging.Logger) and each.level}
    return {name: _shown(name) for name in sorted({ROOT, *names})}


def logger_level(name: str) -> dict[str, object]:
    """Return the level of a logger.

    Raises:
        ConnectRefusal: 404, there is no such logger.
    """
    if name != ROOT and not isinstance(logging.root.manager.loggerDict.get(name), logging.Logger):
        raise ConnectRefusal(NOT_FOUND, f"Logger {name[:200]} not found.")
    return _shown(name)


def set_level(name: str, level: str) -> None:
    """Set the level of a logger and of those below it, as `change_levels` does."""
    change_levels(name, level, SystemClock().wall_ms())


def change_levels(name: str, level: str, now_ms: int) -> list[str]:
    """Set the level of a logger and of those below it; returns the names of those that changed.

    Args:
        name: the logger; `root` is the one above all.
        level: Log4j's name of a level, in any case; an unknown one is INFO.
        now_ms: the time since 1970, which is shown as the time of the change.
    """
    shown = level.upper() if level.upper() in PYTHON_LEVELS else "INFO"
    with _lock:
        known = logging.root.manager.loggerDict.items()
        below = [
            each
            for each, found in known
            if isinstance(found, logging.Logger)
            and found.level
            and (name == ROOT or each.startswith(f"{name}."))
        ]
        changed = []
        for each in sorted({name, *below}):
            logger = logging.getLogger(None if each == ROOT else each)
            if logger.level != PYTHON_LEVELS[shown] or _changed.get(each, ("", 0))[0] != shown:
                changed.append(each)
                _changed[each] = shown, now_ms
            logger.setLevel(PYTHON_LEVELS[shown])
        return changed


def _shown(name: str) -> dict[str, object]:
    logger = logging.getLogger(None if name == ROOT else name)
    level = logger.getEffectiveLevel()
    said, when_ms = _changed.get(name, ("", 0))
    # Set by other means since, such as a configuration of logging that was read again.
    if not said or PYTHON_LEVELS[said] != logger.level:
        return {"level": _NAMES.get(level, logging.getLevelName(level)), "last_modified": None}
    return {"level": said, "last_modified": when_ms}
