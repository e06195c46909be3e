"""CooperativeRun: a stopped run fails with its reason, and later errors are not hidden."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlog.broker.apis.publish import CooperativeRun, Steps
from streamlog.errors import ConnectionLost


@pytest.mark.parametrize(
    "error", [ConnectionLost("gone"), OSError("no disk"), ZeroDivisionError("a mistake"), None]
)
def test_a_stopped_run_reports_only_unexpected_errors_of_its_future(
    error: Exception | None,
) -> None:
    lost: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: lost.append(context["exception"]))
        waited: asyncio.Future[Any] = loop.create_future()
        answer: asyncio.Future[int] = loop.create_future()

        def steps() -> Steps[int]:
            yield None
            yield waited
            return 1

        run = CooperativeRun(steps(), answer, on_over=lambda: pytest.fail("it was stopped"))
        run.go_on()
        await asyncio.sleep(0)
        run.stop(ConnectionLost("it ends"))
        if error is None:
            waited.cancel()
        else:
            waited.set_exception(error)
        with pytest.raises(ConnectionLost, match="it ends"):
            await answer
        await asyncio.sleep(0)

    asyncio.run(main())
    assert lost == ([error] if isinstance(error, ZeroDivisionError) else [])


def test_a_run_resumes_with_the_result_or_error_of_its_future() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        good: asyncio.Future[int] = loop.create_future()
        bad: asyncio.Future[int] = loop.create_future()
        answer: asyncio.Future[list[object]] = loop.create_future()

        def steps() -> Steps[list[object]]:
            first = yield good
            try:
                yield bad
            except OSError as error:
                return [first, str(error)]
            return []

        finished: list[bool] = []
        CooperativeRun(steps(), answer, on_over=lambda: finished.append(answer.done())).go_on()
        good.set_result(7)
        bad.set_exception(OSError("no disk"))
        assert await answer == [7, "no disk"]
        assert finished == [True]

    asyncio.run(main())
