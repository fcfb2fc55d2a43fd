"""A log that nothing reads, or that cannot be written: answers go on, and what is lost is counted."""

import json
import os
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.worlds.abuse import FITTING, MIB, abused_service
from tests.worlds.service import by_names, db_pod

pytestmark = pytest.mark.e2e

LOUD = json.dumps(by_names(db_pod(name="x" * 100_000)))


@pytest.mark.smoke
def test_a_stalled_reader_stops_no_answer(tmp_path: Path) -> None:
    """Lines beyond the queue are dropped; memory stays."""
    reader, writer = os.pipe()
    with abused_service(tmp_path, stdout=writer) as service:
        os.close(writer)
        before = service.memory
        connection = HTTPConnection("127.0.0.1", service.port, timeout=20)
        while not service.metric("log_lines_dropped_total"):
            for _ in range(100):
                connection.request("POST", "/filter", LOUD)
                assert connection.getresponse().read()
        connection.close()
        assert service.filter() == FITTING
        assert service.memory - before < 24 * MIB
    os.close(reader)


def test_a_target_that_fails_says_so_once(tmp_path: Path) -> None:
    """On standard error; answers go on."""
    with Path("/dev/full").open("wb") as full, abused_service(tmp_path, stdout=full.fileno()) as service:
        for _ in range(5):
            assert service.filter() == FITTING
        while service.metric("log_lines_dropped_total") < 5:
            assert service.process.poll() is None
        service.process.terminate()
        assert service.process.wait(timeout=15) == 0
        assert service.process.stderr is not None
        text = service.process.stderr.read().decode()
    assert text.count("the log cannot be written") == 1
    assert "Traceback" not in text


def test_a_long_name_does_not_make_a_long_line(tmp_path: Path) -> None:
    """Every field is cut, and says how long it was."""
    with abused_service(tmp_path) as service:
        connection = HTTPConnection("127.0.0.1", service.port, timeout=20)
        connection.request("POST", "/filter", json.dumps(by_names(db_pod(name="x" * MIB))))
        connection.getresponse().read()
        connection.request("GET", "/" + "y" * 60_000)
        connection.getresponse().read()
        connection.close()
        service.process.terminate()
        assert service.process.wait(timeout=15) == 0
        lines = service.log.read_text().splitlines()
    assert any("characters)" in line for line in lines)
    assert max(len(line) for line in lines) < 4096
