"""Monitors the candidates: two that answer at once are two leaders."""

import http.client
import json
import time
from urllib.parse import urlsplit

from devcluster.http_check import is_filtered
from tests.e2e.repeated import Repeated
from tests.e2e.rig import Rig

PROBE = {"Pod": {"metadata": {"name": "monitor"}}, "NodeNames": []}
_QUESTION = json.dumps(PROBE)
_HEADERS = {"Content-Type": "application/json"}
_TIMEOUT = 0.5
_PAUSE = 0.05


class LeaderMonitor(Repeated):
    """Asks every candidate repeatedly whether it answers, while entered."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(
            lambda: self._note(time.monotonic(), list(filter(self._answers, rig.candidates))), lambda: _PAUSE
        )
        # Times at which several candidates answered, and their names.
        self.double_answers: list[tuple[float, list[str]]] = []
        self.silent_since: float | None = None  # since when no candidate answers, None if one does
        self.longest_silence = 0.0  # the longest time in which no candidate answered, in seconds
        self._rig = rig
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for connection in self._connections.values():
            connection.close()

    def _answers(self, name: str) -> bool:
        # Connections are kept: a new one for each of forty questions a second costs more than the answers.
        connection = self._connections.get(name)
        if connection is None:
            address = urlsplit(self._rig.url(name)).netloc
            connection = http.client.HTTPConnection(address, timeout=_TIMEOUT)
            self._connections[name] = connection
        try:
            connection.request("POST", "/filter", _QUESTION, _HEADERS)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            # The next request connects again.
            connection.close()
            return False
        return answer.status == 200 and is_filtered(answer.status, json.loads(body))

    def _note(self, now: float, answering: list[str]) -> None:
        if len(answering) > 1:
            self.double_answers.append((now, answering))
        if answering and self.silent_since is not None:
            self.longest_silence = max(self.longest_silence, now - self.silent_since)
            self.silent_since = None
        elif not answering and self.silent_since is None:
            self.silent_since = now
