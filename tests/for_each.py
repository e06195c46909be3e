"""One test for many small cases, each of which would cost pytest more than it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def for_each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test once for each case, as `pytest.mark.parametrize` would; fixtures are shared.

    The first case that fails ends the test, and a note of the error names it.
    """
    own = (names,) if isinstance(names, str) else names

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            for case in cases:
                values = (case,) if isinstance(names, str) else case
                arguments = dict(zip(own, values, strict=True))
                try:
                    test(**arguments, **fixtures)
                except BaseException as error:
                    error.add_note(f"The case: {arguments}")
                    raise

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in own]
        all_cases.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return all_cases

    return decorate
