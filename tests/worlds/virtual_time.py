"""An event loop whose clock jumps to the next timer, so that tests wait for seconds in no time."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import wraps
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class _JumpingSelector(selectors.SelectSelector):
    """Sleeps by moving a clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Called by the loop when nothing is ready; `timeout` is the time until the next timer."""
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Arguments], _Result], *args: *_Arguments
    ) -> asyncio.Future[_Result]:
        """Calls a blocking function here: it takes no virtual time."""
        del executor
        future: asyncio.Future[_Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 # the future's reader gets it
            future.set_exception(error)
        return future

    def jump_to(self, seconds: float) -> None:
        """Moves the clock; timers that are due by then run later."""
        self._jumping.now = seconds

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._jumping.now


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


def virtually(test: Callable[_Parameters, Coroutine[Any, Any, None]]) -> Callable[_Parameters, None]:
    """Runs a test in virtual time."""

    @wraps(test)
    def wrapper(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapper
