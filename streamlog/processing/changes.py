"""Changes of tables that carry what they replace, through functions of the user's.

Whoever subtracts (`regrouped`) has to take away exactly what was added before. So along one edge
the old values are a chain: each is what the last change of its key handed on. Rules of the file:

1. What a change replaces is made anew by the same function from the value before; functions on
   tables have to be deterministic anyway.
2. A row on which a function fails, and that its policy leaves out, is not there: unlike a record of
   a stream it is handed on, as a deletion, for what was there before has to go.
3. A deletion is handed on only if there was a row: a table that knows what its changes replace
   hands on no others.

Not done here: where old values come from, which is for the steps that keep rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamlog.processing.columns import Batch
from streamlog.processing.dead_letters import Letter
from streamlog.processing.exits import exit_failure
from streamlog.processing.failures import LeftOut, letter_of
from streamlog.processing.step import Step
from streamlog.records.columns import has_none


def seen_through(
    step: Step, batch: Batch, view: Callable[[Any, Any], Any], *, tells_old_values: bool = True
) -> Batch:
    """The changes as a view of the table shows them, and what they replace in the view.

    Without those of rows that are seen neither before nor after.

    Args:
        step: the view, whose policy counts.
        batch: changes with what they replace.
        view: what is seen of a key and its value, which is not None; None: nothing.
        tells_old_values: somebody needs what is replaced; else it is left away.

    Raises:
        ProcessingError: `view` failed, and rows may not be left out here.
    """
    keys, before = batch.keys, batch.old_values or ()
    if step.failures is None:
        _, new = step.applied(
            batch, lambda k, v: None if v is None else view(k, v), keys, batch.values
        )
    else:
        columns = enumerate(zip(keys, batch.values, strict=True))
        new = [
            None if v is None else result_of(step, batch, at, view, k, v) for at, (k, v) in columns
        ]
    old = before
    if tells_old_values or has_none(new):
        old = [
            result_before(step, batch, at, view, keys[at], value)
            if value is not None and (tells_old_values or new[at] is None)
            else value
            for at, value in enumerate(before)
        ]
    seen = real_changes(batch.with_values(new).with_old_values(old))
    return seen if tells_old_values else seen.with_old_values(None)


def real_changes(batch: Batch) -> Batch:
    """The changes without deletions of what was not there."""
    if batch.old_values is None or not has_none(batch.values):
        return batch
    columns = zip(batch.values, batch.old_values, strict=True)
    real = [new is not None or old is not None for new, old in columns]
    return batch if all(real) else batch.where(real)


def result_of(step: Step, batch: Batch, at: int, fn: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - the user's
    """What the function gives for a row; None if it fails and the row is left out.

    Raises:
        ProcessingError: it failed, and rows may not be left out here.
    """
    try:
        return fn(*arguments)
    except Exception as error:  # noqa: BLE001 - the user's code: the policy decides
        caught = error
    except SystemExit as stop:
        caught = exit_failure(stop)
    if step.failures is None:
        raise batch.failure(step.name, at, caught) from caught
    found = step.failures.attempted(batch, at, fn, *arguments, first=caught)
    return None if isinstance(found, LeftOut) else found


def result_before(
    step: Step, batch: Batch, at: int, fn: Callable[..., Any], *arguments: object
) -> Any:  # noqa: ANN401 - the user's
    """What the function gave for a row when that came: None if it was left out then.

    Raises:
        ProcessingError: it fails now, and rows may not be left out here.
    """
    try:
        return fn(*arguments)
    except Exception as error:  # noqa: BLE001 - the user's code: the policy decides
        caught = error
    except SystemExit as stop:
        caught = exit_failure(stop)
    if step.failures is None:
        raise batch.failure(step.name, at, caught) from caught
    letter = partial(letter_of, batch, at, step.name)
    found = step.failures.tried(partial(fn, *arguments), letter, caught)
    return None if isinstance(found, Letter) else found
