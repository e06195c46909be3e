"""The adviser: what is wrong with a log or an app, what follows, and the command that mends it.

`log_look` and `app_look` ask a running log and describe it as a `LogView` and an `AppView`;
`cluster_advice`, `reader_advice` and `app_advice` find what is wrong with these views, without I/O.
`advise` applies all of their rules.

Rule of the package: the adviser changes nothing, and a log that is healthy and new has no finding.
"""

from __future__ import annotations

from streamlog.adviser.app_advice import APP_RULES, AppView
from streamlog.adviser.cluster_advice import CLUSTER_RULES
from streamlog.adviser.log_view import SEVERITIES, STANDARD, Diagnosis, LogView, Thresholds
from streamlog.adviser.reader_advice import READER_RULES

__all__ = ["AppView", "Diagnosis", "LogView", "Thresholds", "advise"]


def advise(
    log: LogView, app: AppView | None = None, thresholds: Thresholds = STANDARD
) -> list[Diagnosis]:
    """Return everything that is wrong with a log, and with an app on it; the worst first."""
    found = [each for rule in (*CLUSTER_RULES, *READER_RULES) for each in rule(log, thresholds)]
    if app is not None:
        own = [each for rule in APP_RULES for each in rule(app, log, thresholds)]
        # The program knows better than the groups which topics are used.
        known = {(each.code, each.where) for each in own}
        found = own + [each for each in found if (each.code, each.where) not in known]
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))
