"""Timelines: tables of `at event -> answer` that a world plays in virtual time.

Each line begins with the seconds since the world began; then come events, apart by `;`. An event is a method of the world, or of a part
of it, with its arguments, and `-> answer` says what it must return. An attribute is read by its name, and `set` changes attributes:

    0    create 0; filter 0 -> a b
    0.1  select 0 a; offer 0 -> none; ledger.outstanding -> 0; set leads=no

A coroutine runs in the background. Its answer is `waits` while it is not done; a later event `answer filter 1 -> b` awaits the answer of
`filter 1`, which must be there by then, and `cancel filter 1` ends it. An error is the answer `ErrorName words`, with words of its message. Lines that begin with # say
why something is so.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Protocol

import pytest

from tests.worlds.virtual_time import run, virtual_loop

# Everything that is ready runs before virtual time moves: this is how long the world settles after each event.
INSTANT = 1e-6
WAITS = "waits"


class World(Protocol):
    """A world whose methods are the events of timelines."""

    async def end(self) -> None:
        """Asserts that nothing is left behind."""


def rows(*tables: dict[str, str] | str) -> list[Any]:
    """Returns the parameters of a test: timelines by name. In a text each name stands before its timeline, which is indented."""
    parameters = []
    for table in tables:
        if isinstance(table, dict):
            named = list(table.items())
        else:
            blocks = re.split(r"\n(?=\S)", table.strip())
            named = [(block.partition("\n")[0], block.partition("\n")[2]) for block in blocks if block[0] != "#"]
        parameters += [pytest.param(timeline, id=name) for name, timeline in named]
    return parameters


def play(create_world: Callable[..., World], timeline: str) -> None:
    """Plays a timeline; a first event `world` has the arguments of `create_world`."""
    run(_play(create_world, timeline))


async def _play(create_world: Callable[..., World], timeline: str) -> None:
    assert "->" in timeline, "it checks nothing"
    world: World | None = None
    requests: dict[str, asyncio.Task[Any]] = {}
    clock = virtual_loop().time
    began = clock()
    for at, event in _events(timeline):
        await asyncio.sleep(max(0.0, began + at - clock()))
        call, arrow, expected = (part.strip() for part in event.partition("->"))
        if world is None:
            verb, arguments, options = _parse(call)
            world = create_world(*arguments, **options) if verb == "world" else create_world()
            if verb == "world":
                continue
        answer = await _answer(world, call, requests)
        assert not arrow or _is_answer(answer, expected), f"{at:g} {call} -> {answer}, not {expected}"
        assert arrow or not re.match(r"\w+Error\b", answer), f"{at:g} {call} -> {answer}"
    assert not requests, f"not answered: {list(requests)}"
    assert world is not None
    await world.end()


def _events(timeline: str) -> Iterable[tuple[float, str]]:
    for line in timeline.splitlines():
        at, _, events = line.strip().partition(" ")
        if at and not at.startswith("#"):
            yield from ((float(at), event.strip()) for event in events.split(";"))


def _parse(call: str) -> tuple[str, list[Any], dict[str, Any]]:
    verb, *words = call.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    arguments = [_value(word) for word in words if "=" not in word]
    return verb, arguments, {name: _value(word) for name, word in options.items()}


def _value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


async def _answer(world: World, call: str, requests: dict[str, asyncio.Task[Any]]) -> str:
    if call.startswith("cancel "):
        return _text(requests.pop(call.removeprefix("cancel ")).cancel())
    if call.startswith("answer "):
        call = call.removeprefix("answer ")
        task = requests.pop(call)
    else:
        verb, arguments, options = _parse(call)
        member = partial(_set, world) if verb == "set" else attrgetter(verb)(world)
        result = member(*arguments, **options) if callable(member) else member
        if not isinstance(result, Coroutine):
            await asyncio.sleep(INSTANT)
            return _text(result)
        task = asyncio.create_task(result, name=call)
    await asyncio.wait({task}, timeout=INSTANT)
    await asyncio.sleep(INSTANT)
    if not task.done():
        requests[call] = task
        return WAITS
    error = task.exception()
    return f"{type(error).__name__} {error}" if error is not None else _text(task.result())


def _set(world: World, **values: Any) -> None:
    for path, value in values.items():
        *parts, name = path.split(".")
        part = reduce(getattr, parts, world)
        assert hasattr(part, name), f"nothing reads {path}"
        setattr(part, name, {"yes": True, "no": False}.get(value, value))


def _is_answer(answer: str, expected: str) -> bool:
    name, _, words = expected.partition(" ")
    return answer == expected or (name.endswith("Error") and answer.startswith(f"{name} ") and words in answer)


def _text(value: object) -> str:
    """A value as it stands in timelines: `none` for nothing, names apart by spaces."""
    if isinstance(value, set | frozenset):
        return _text(sorted(value))
    if isinstance(value, list | tuple):
        return " ".join(_text(entry) for entry in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{round(value, 3):g}" if isinstance(value, float) else "none" if value in (None, "") else str(value)
