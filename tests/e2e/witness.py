"""Watches over candidates: two that answer at once are two leaders."""

from __future__ import annotations

import threading
import time
from typing import Self

from tests.e2e.rig import Rig


class Witness:
    """Asks every candidate again and again whether it answers, and notes when two did, and when nobody did."""

    def __init__(self, rig: Rig) -> None:
        self.both: list[tuple[float, list[str]]] = []
        self.silent_since: float | None = None
        self.longest_silence = 0.0
        self._rig = rig
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._note(time.monotonic(), [])

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            self._note(time.monotonic(), [name for name in self._rig.candidates if self._answers(name)])

    def _answers(self, name: str) -> bool:
        return (
            self._rig.ask(name, "/filter", {"Pod": {"metadata": {"name": "witness"}}, "NodeNames": []}, 0.5)[0] == 200
        )

    def _note(self, now: float, answering: list[str]) -> None:
        if len(answering) > 1:
            self.both.append((now, answering))
        if answering and self.silent_since is not None:
            self.longest_silence = max(self.longest_silence, now - self.silent_since)
            self.silent_since = None
        elif not answering and self.silent_since is None:
            self.silent_since = now
