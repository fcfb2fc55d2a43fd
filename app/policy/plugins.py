"""Loads rules from outside the package, and contains their failures: a rule that fails or hangs neither ends nor blocks
the program.

Rules come from entry points of installed packages (`PREDICATES_GROUP`, `PRIORITIES_GROUP`), and from modules that the command line
names, which have them in the sequences `PREDICATES` and `PRIORITIES`.

Each call of a rule is made in a thread of its own, and given up after `TIME_LIMIT`. A rule that was given up is not called again for a
while. Its thread cannot be ended: it goes on, with what it holds, until the call returns or the process ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Final, TypeVar

import structlog

from scheduler_core.backoff import Backoff
from scheduler_core.generic.cycle_state import UndecidableError
from scheduler_core.generic.plugin_rules import PluginError, Plugins, contain
from scheduler_core.packing.budget import give_way

log = structlog.get_logger("plugins")

PREDICATES_GROUP: Final = "longhorn_extender.predicates"
PRIORITIES_GROUP: Final = "longhorn_extender.priorities"
# For all nodes of one decision; kube-scheduler waits 3 s for an answer with the recommended configuration.
TIME_LIMIT: Final = 1.0
_BACKOFF: Final = Backoff(60.0, 3600.0)
# As long as a slice of a computation: other tasks have a turn in between.
_WAIT_SECONDS: Final = 0.005

_Result = TypeVar("_Result")


def load_plugins(modules: Sequence[str] = ()) -> Plugins:
    """Loads the rules of installed packages, and those of modules.

    Args:
        modules: names of modules, also of the current folder, or paths of files that end in ``.py``

    Raises:
        PluginError: a plugin cannot be loaded, or defines something else than rules
    """
    plugins = Plugins(run=PluginThreads().run)
    for group in (PREDICATES_GROUP, PRIORITIES_GROUP):
        for entry_point in entry_points(group=group):
            rules = _load(entry_point.name, partial(_load_entry_point, entry_point))
            added = (rules, ()) if group == PREDICATES_GROUP else ((), rules)
            plugins = plugins.add(f"plugin {entry_point.name}", *added)
    for name in modules:
        plugins = plugins.add(f"plugin {name}", *_load(name, partial(_load_module, name)))
    return plugins


def _load(name: str, load: Callable[[], _Result]) -> _Result:
    try:
        return contain(load, f"plugin {name}: cannot be loaded")
    except PluginError as error:
        frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ is not None else []
        module = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
        own = [frame for frame in frames if Path(frame.filename).stem == module]
        if not own:
            raise
        raise PluginError(f"{error} (line {own[-1].lineno}, column {(own[-1].colno or 0) + 1})") from error


def _load_entry_point(entry_point: EntryPoint) -> object:
    rules = entry_point.load()
    return rules if isinstance(rules, Sequence) else (rules,)


def _load_module(name: str) -> tuple[object, object]:
    module = _import_file(Path(name)) if name.endswith(".py") else _import_module(name)
    rules = (getattr(module, "PREDICATES", ()), getattr(module, "PRIORITIES", ()))
    if not any(rules):
        raise PluginError("it has neither PREDICATES nor PRIORITIES")
    return rules


def _import_module(name: str) -> ModuleType:
    # A console script does not look in the current folder. At the end, so that its files hide no installed module.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    # A name that no import has, so that a file json.py hides no other module.
    name = f"plugin {path}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class _Suspension:
    """A rule that is not called for a while."""

    attempts: int  # how often in a row it was given up
    until: float  # seconds of the clock


class PluginThreads:
    """Calls plugins in threads.

    Args:
        time_limit: seconds until a call is given up
        clock: seconds of a clock that never goes back
    """

    def __init__(self, time_limit: float = TIME_LIMIT, clock: Callable[[], float] = monotonic) -> None:
        self._time_limit = time_limit
        self._clock = clock
        self._suspensions: dict[str, _Suspension] = {}
        self._logged: set[tuple[str, str, int]] = set()

    def run(self, rule: str, call: Callable[[], _Result], /) -> _Result:
        """Returns the result of a call to a plugin's rule.

        Raises:
            UndecidableError: the rule raised, did not answer in time, or is not called now because it did not recently
        """
        suspension = self._suspensions.get(rule)
        if suspension is not None and self._clock() < suspension.until:
            raise UndecidableError(
                f"plugin rule {rule} did not answer within {self._time_limit:g} s and is not called for a while"
            )
        deadline = self._clock() + self._time_limit
        result: Future[_Result] = Future()
        # A daemon does not keep the process from ending, as a thread of an executor would.
        threading.Thread(target=self._call, args=(rule, call, result), name=f"plugin {rule}", daemon=True).start()
        while not wait([result], _WAIT_SECONDS).done:
            if self._clock() >= deadline:
                self._suspend(rule)
                raise UndecidableError(f"plugin rule {rule} did not answer within {self._time_limit:g} s")
            give_way()
        self._suspensions.pop(rule, None)
        try:
            return result.result()
        except PluginError as error:
            raise UndecidableError(str(error)) from error

    def _call(self, rule: str, call: Callable[[], _Result], result: Future[_Result]) -> None:
        try:
            result.set_result(self._contain(rule, call))
        except PluginError as error:
            result.set_exception(error)

    def _contain(self, rule: str, call: Callable[[], _Result]) -> _Result:
        failure = f"plugin rule {rule} failed"
        try:
            return contain(call, failure)
        except PluginError as error:
            contain(partial(self._log, rule, error), failure)
            raise

    def _log(self, rule: str, error: PluginError) -> None:
        """Logs the traceback, once per line that raises: a rule that fails does so for pod after pod."""
        cause = error.__cause__
        *_, (frame, line) = traceback.walk_tb(cause.__traceback__ if cause else None)
        place = (rule, frame.f_code.co_filename, line)
        if place not in self._logged:
            self._logged.add(place)
            log.warning("a plugin failed", rule=rule, exception="".join(traceback.format_exception(cause)))

    def _suspend(self, rule: str) -> None:
        earlier = self._suspensions.get(rule)
        attempts = 1 if earlier is None else earlier.attempts + 1
        seconds = _BACKOFF.delay(attempts - 1)
        self._suspensions[rule] = _Suspension(attempts, self._clock() + seconds)
        log.warning("a plugin did not answer", rule=rule, seconds=self._time_limit, not_called_for=seconds)
