"""An action that is repeated while a test goes on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self


class Repeated:
    """Repeats an action in another thread while it is entered, so many seconds after its last end. An error of it is raised at the end."""

    def __init__(self, action: Callable[[], object], seconds: Callable[[], float]) -> None:
        self._action = action
        self._seconds = seconds
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._repetition = self._pool.submit(self._repeat)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._pool:
            self._repetition.result()

    def _repeat(self) -> None:
        while not self._ended.wait(self._seconds()):
            self._action()
