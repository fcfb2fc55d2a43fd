"""The policy file: which policy is in force, and rules from outside the package.

Without a file it is the extender's own policy, `EXTENDER_POLICY`, which has only Longhorn priorities and refuses nothing beyond
/filter's own decision. A file's policy comes into force once everything that its rules read is known; until then the previous policy
stays. The file is read again whenever its content changes. The content is compared and not the file's times, so it does not matter
whether the file is written, replaced, or a ConfigMap's link that is switched. A file that cannot be used is logged and shown in /state,
and the previous policy stays in force.

Rules from outside the package come from modules and files that the command line names, which have them in the sequences
`PREDICATES` and `PRIORITIES`. A rule that raises fails its decision, not the program; one that does not return is waited for.
"""

import asyncio
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Protocol

import structlog
from rpds import HashTrieMap

from app.schemas.decision import PolicyAnswer
from app.settings import LOADED, REFUSED, RELOAD_INTERVAL, read_content
from scheduler_core.errors import CoreError
from scheduler_core.generic.cluster_state import GenericClusterState, NodeInfo
from scheduler_core.generic.plugin_rules import NO_PLUGINS, PluginError, Plugins, contain
from scheduler_core.generic.policy import EXTENDER_POLICY, Policy, PolicyError, kinds_read, parse_policy
from scheduler_core.model.generic import Node

# With more names all are dropped, because most of them must be names of nodes that do not exist.
_MAX_NAMES = 50_000
# A request may name 20,000 nodes, and nothing else runs on the event loop meanwhile.
_NODES_PER_TURN = 256


class GenericSource(Protocol):
    """Provides nodes, pods and services to the rules that read them."""

    def want(self, kinds: frozenset[str]) -> None:
        """Provides these kinds from now on."""

    def problem_of(self, kinds: frozenset[str]) -> str:
        """Returns why these kinds are not known well enough, or ""."""

    def state(self) -> GenericClusterState:
        """Returns all objects of the provided kinds."""


class SnapshotGenericState:
    """The state of a snapshot, which never changes."""

    def __init__(self, state: GenericClusterState) -> None:
        self._state = state

    def want(self, kinds: frozenset[str]) -> None:
        """Does nothing: a snapshot provides every kind."""

    def problem_of(self, kinds: frozenset[str]) -> str:
        """Returns "": a file that could be read is complete."""
        del kinds
        return ""

    def state(self) -> GenericClusterState:
        return self._state


class PolicyInForce:
    """Owner of the policy in force and of the state it reads.

    Args:
        file: the policy file, if an administrator gave one
        source: where the kinds come from that a policy reads
        default: the policy without a file
        needs: returns the kinds that a policy's rules read of the source
    """

    def __init__(
        self,
        file: "PolicyFile | None" = None,
        source: GenericSource | None = None,
        default: Policy = EXTENDER_POLICY,
        needs: Callable[[Policy], frozenset[str]] = kinds_read,
    ) -> None:
        self._file = file
        self._source = source or SnapshotGenericState(GenericClusterState())
        self._policy = default if file is None else file.policy
        self._needs = needs
        self._reads = needs(self._policy)
        self._names: frozenset[str] = frozenset()
        self._names_only = GenericClusterState()
        self._source.want(self._reads)

    @property
    def from_file(self) -> bool:
        """Whether a policy file is used, whose rules may read `Pod.scheduling`."""
        return self._file is not None

    @property
    def policy(self) -> Policy:
        self._update()
        return self._policy

    @property
    def problem(self) -> str:
        self._update()
        return self._source.problem_of(self._reads)

    @property
    def waiting_for(self) -> str:
        if self._file is None or self.policy is self._file.policy:
            return ""
        return self._source.problem_of(self._needs(self._file.policy))

    def _update(self) -> None:
        """Puts a newer policy in force once everything it reads is known."""
        newest = self._file.policy if self._file else self._policy
        if newest is self._policy:
            return
        kinds = self._needs(newest)
        self._source.want(kinds | self._reads)
        if not self._source.problem_of(kinds):
            self._policy = newest
            self._reads = kinds
            self._source.want(kinds)

    async def state(self, names: Sequence[str]) -> GenericClusterState:
        """Returns the state that the policy's rules read, just nodes of these names if they read nothing."""
        if self._reads:
            return self._source.state()
        if not self._names.issuperset(names):
            known = self._names.union(names) if len(self._names) < _MAX_NAMES else frozenset(names)
            nodes: dict[str, NodeInfo] = {}
            for number, name in enumerate(known, start=1):
                if number % _NODES_PER_TURN == 0:
                    await asyncio.sleep(0)
                nodes[name] = NodeInfo.of(Node(name), ())
            # Not before the last turn, because another request may read both meanwhile.
            self._names = known
            self._names_only = GenericClusterState(HashTrieMap(nodes), tuple(sorted(nodes)))
        return self._names_only

    def answer(self) -> PolicyAnswer | None:
        """Returns what /state shows of the policy; None without a file."""
        if self._file is None:
            return None
        pending = bool(self.waiting_for)
        return PolicyAnswer(
            file=self._file.path,
            predicates=[entry.name for entry in self._policy.predicates],
            priorities={entry.name: entry.weight for entry in self._policy.priorities},
            warnings=list(self._policy.warnings),
            problem=self._file.problem,
            pending=pending,
        )


log = structlog.get_logger("policy")


class PolicyFileError(CoreError):
    """A policy file cannot be used; the text names the file and each wrong entry."""


class PolicyFile:
    """Owner of the policy that was read last. Raises a PolicyFileError if the file cannot be used now.

    Args:
        path: of the file
        plugins: the rules from outside the package that it may name
    """

    def __init__(self, path: str, plugins: Plugins = NO_PLUGINS) -> None:
        self.path = path
        self._plugins = plugins
        self.problem = ""
        self._observer: Callable[[str], None] = lambda _: None
        self._content = read_content(path)
        self.policy = _parse(path, self._content, plugins)

    def subscribe(self, observer: Callable[[str], None]) -> None:
        """Calls `observer` with each reload's result: ``loaded`` or ``refused``."""
        self._observer = observer

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_INTERVAL)
            await self.reload()

    async def reload(self) -> None:
        """Reads the file, and parses it if its content changed."""
        content = await asyncio.to_thread(read_content, self.path)
        if content == self._content:
            return
        self._content = content
        try:
            # In a thread, because the type of a plugin's argument may compute for long.
            policy = await asyncio.to_thread(_parse, self.path, content, self._plugins)
        except PolicyFileError as error:
            self.problem = str(error)
            log.warning("policy refused, the one before stays", problem=self.problem)
            self._observer(REFUSED)
            return
        self.policy = policy
        self.problem = ""
        if policy.warnings:
            log.warning("policy loaded", file=self.path, warnings=list(policy.warnings))
        else:
            log.info("policy loaded", file=self.path, warnings=[])
        self._observer(LOADED)


def _parse(path: str, content: bytes | str, plugins: Plugins) -> Policy:
    if isinstance(content, str):
        raise PolicyFileError(f"{path}: {content}")
    try:
        return parse_policy(content, plugins)
    except PolicyError as error:
        raise PolicyFileError(f"{path}: {error}") from error


def load_plugins(modules: Sequence[str] = ()) -> Plugins:
    """Loads the rules of modules. Raises a PluginError if a module cannot be loaded, or defines something else than
    rules.

    Args:
        modules: names of modules, also of the current folder, or paths of files that end in ``.py``
    """
    plugins = NO_PLUGINS
    for name in modules:
        plugins = plugins.add(f"plugin {name}", *_load_module(name))
    return plugins


def _load_module(name: str) -> tuple[object, object]:
    try:
        return contain(partial(_read_rules, name), f"plugin {name}: cannot be loaded")
    except PluginError as error:
        frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ is not None else []
        module = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
        own = [frame for frame in frames if Path(frame.filename).stem == module]
        if not own:
            raise
        raise PluginError(f"{error} (line {own[-1].lineno}, column {(own[-1].colno or 0) + 1})") from error


def _read_rules(name: str) -> tuple[object, object]:
    if name.endswith(".py"):
        module = _import_file(Path(name))
    else:
        # A console script does not look in the current folder. At the end, so that its files hide no installed module.
        folder = str(Path.cwd())
        if folder not in sys.path:
            sys.path.append(folder)
        module = importlib.import_module(name)
    rules = (getattr(module, "PREDICATES", ()), getattr(module, "PRIORITIES", ()))
    if not any(rules):
        raise PluginError("it has neither PREDICATES nor PRIORITIES")
    return rules


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
