"""For all tests: examples are judged by what happens, never by how long it takes, because machines differ and are shared."""

import copy
import gc
import os
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import is_hypothesis_test, settings

from tests.tiers import is_end_to_end

if TYPE_CHECKING:
    from tests.control_plane import ControlPlane

# A fifth of the API server's work was garbage collection (its own profile, size run); memory is plentiful. Child processes inherit this.
os.environ.setdefault("GOGC", "400")

# A run in the background ignores Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Garbage collection was a twelfth of the CPU time of the unit tests.
gc.set_threshold(20_000, 50, 50)

# Reading the machine's authorities takes each client of an API server 80 ms, and no test talks to a server that one of them vouches for.
ssl.SSLContext.load_default_certs = lambda *_: None  # type: ignore[method-assign]

# Each worker, and each program that a test starts, would compile hundreds of modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_parse_documents = yaml.load_all


@lru_cache(maxsize=64)
def _parsed_documents(text: bytes | str, loader: Any) -> list[Any]:
    return list(_parse_documents(text, loader))


def _load_documents(stream: bytes | str, Loader: Any) -> Any:  # noqa: N803 # PyYAML's signature
    return copy.deepcopy(_parsed_documents(stream, Loader))


# An example cluster takes 80 ms, hundreds of times.
yaml.load_all = _load_documents  # type: ignore[assignment]

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ControlPlane"]:
    """The control plane of this worker, which its files borrow one after the other."""
    from tests.control_plane import ControlPlane

    shared = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    yield shared
    shared.stop()


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of every program."""
    return "asyncio"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files without unit tests if these alone run: each worker would load them for nothing."""
    unit = config.option.markexpr == "not e2e" and collection_path.match("test_*.py")
    return True if unit and is_end_to_end(collection_path) else None


def pytest_collection_finish() -> None:
    """Leaves what was loaded, some hundred thousand objects, out of every garbage collection."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the longest modules first: otherwise one worker is still busy when all others have nothing to do."""
    longest: dict[Path, tuple[float, bool, bool]] = {}
    for item in items:
        longest[item.path] = max(longest.get(item.path, (0.0, False, False)), _length(item))
    items.sort(key=lambda item: longest[item.path], reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Refuses a test after which the next write to a closed connection would end its worker without a word."""
    yield
    if signal.getsignal(signal.SIGPIPE) is not signal.SIG_IGN:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        pytest.fail("SIGPIPE ends the process from now on")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """Ends a run of which a worker died: its successor would wait for tests forever (pytest-xdist, issue 1378)."""
    pytest.exit(f"the worker of {crashitem} died", returncode=pytest.ExitCode.INTERNAL_ERROR)


def _length(item: pytest.Item) -> tuple[float, bool, bool]:
    """How long a test may take in seconds, whether it needs processes, and whether it has many examples."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0]) if marker is not None else 0.0
    has_examples = is_hypothesis_test(getattr(item, "obj", None))
    return seconds, item.get_closest_marker("e2e") is not None, has_examples
