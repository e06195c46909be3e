"""Exits: what becomes of `sys.exit` in a function of the user's.

SystemExit is no `Exception`, so it would end a worker past every policy and without the record's
coordinates. It is the function's failure like any other error. KeyboardInterrupt is not looked for
in here, as it may be Ctrl-C; where it can't be, the runner makes it a failure.
"""

from __future__ import annotations


def exit_failure(stop: BaseException) -> Exception:
    """The failure of a function that tried to end the process."""
    failure = RuntimeError(
        f"{_place(stop)} raised {stop!r}, and a function can't end its worker: raise an error to"
        " fail, or return"
    )
    failure.__cause__ = stop
    return failure


def _place(stop: BaseException) -> str:
    """The function that raised it, and where."""
    at = stop.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return "the function"
    code = at.tb_frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{at.tb_lineno})"
