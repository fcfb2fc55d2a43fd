"""What the controllers watch: the objects of each kind as they were last seen, and who is told when one changes.

An object that cannot be read is kept as a `Fault`, so that its name and what is wrong with it are known. A DiskSchedule is kept
together with the bytes it was read from, because every write is based on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from app.kube.reflector import Decode, Key
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.convert.object_header import header
from scheduler_core.convert.snapshot_kinds import KINDS, LONGHORN_GROUP
from scheduler_core.disk_schedule.conditions import DISK_ALLOCATION
from scheduler_core.errors import ObjectError
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, ImageCopies
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import BackingImage, Volume

_Value = TypeVar("_Value")
_Model = TypeVar("_Model")
_NOTHING: Final = b""


@dataclass(frozen=True, slots=True)
class Seen(Generic[_Value]):
    """An object as it was at one version; `raw` is empty for kinds nobody writes from here."""

    name: str
    version: str
    value: _Value | Fault
    raw: bytes = _NOTHING


@dataclass(frozen=True, slots=True)
class VolumeSeen:
    """A volume and what it says about its allocation."""

    volume: Volume
    condition: Condition | None


@dataclass(frozen=True, slots=True)
class ImageSeen:
    """A backing image, as placement reads it and as its controller does."""

    image: BackingImage
    copies: ImageCopies


Listener = Callable[[str, _Value | Fault | None, _Value | Fault | None], None]
"""Told a name, and what was and is there; None for nothing."""


class Collection(Generic[_Value]):
    """The objects of one kind; a reflector's sink."""

    def __init__(self) -> None:
        self.revision = 0
        self._objects: dict[str, Seen[_Value]] = {}
        self._listeners: list[Listener[_Value]] = []

    def listen(self, listener: Listener[_Value]) -> None:
        """Tells of every change from now on; an object has changed if its value differs, or if it cannot be read."""
        self._listeners.append(listener)

    def get(self, name: str) -> Seen[_Value] | None:
        """One object."""
        return self._objects.get(name)

    def value(self, name: str) -> _Value | Fault | None:
        """What one object says."""
        seen = self._objects.get(name)
        return None if seen is None else seen.value

    def all(self) -> dict[str, Seen[_Value]]:
        """All of them, as they are now: what happens later does not change the answer."""
        return dict(self._objects)

    def readable(self) -> dict[str, _Value]:
        """What those say that can be read."""
        return {name: seen.value for name, seen in self._objects.items() if not isinstance(seen.value, Fault)}

    def unreadable(self) -> dict[str, Fault]:
        """What is wrong with the others."""
        return {name: seen.value for name, seen in self._objects.items() if isinstance(seen.value, Fault)}

    def replaced(self, objects: Mapping[Key, Seen[_Value]]) -> None:
        """Called by the reflector: the kind as a whole."""
        for name in [name for name in self._objects if name not in objects]:
            self._set(name, None)
        for seen in objects.values():
            self._set(seen.name, seen)

    def changed(self, key: Key, value: Seen[_Value] | None) -> None:
        """Called by the reflector: one object. News that is older than what a write has answered is none."""
        known = self._objects.get(str(key))
        if value is None or known is None or not _newer(known.version, value.version):
            self._set(str(key), value)

    def learn(self, seen: Seen[_Value]) -> None:
        """What a write has answered, before the watch tells. One that is gone meanwhile stays gone."""
        known = self._objects.get(seen.name)
        if known is not None and _newer(seen.version, known.version):
            self._set(seen.name, seen)

    def _set(self, name: str, seen: Seen[_Value] | None) -> None:
        before = self._objects.get(name)
        if seen is None:
            self._objects.pop(name, None)
        else:
            self._objects[name] = seen
        was, now = before.value if before else None, seen.value if seen else None
        # Of what cannot be read, more may have changed than the Fault tells: that it is being deleted, for one.
        same = was == now and not (isinstance(now, Fault) and before and seen and before.version != seen.version)
        if same:
            return
        self.revision += 1
        for listener in self._listeners:
            listener(name, was, now)


def _newer(version: str, known: str) -> bool:
    return version.isdigit() and known.isdigit() and int(version) > int(known)


def decoding(read: Callable[[bytes | msgspec.Raw], _Value | Fault], *, keep: bool = False) -> Decode[Seen[_Value]]:
    """How a reflector reads a kind: what cannot be read is a Fault, and only an object without a name is an error."""

    def decode(raw: bytes | msgspec.Raw) -> tuple[Key, Seen[_Value]]:
        found = header(raw)
        try:
            value: _Value | Fault = read(raw)
        except ObjectError as error:
            value = Fault(error.field, error.problem)
        return found.name, Seen(found.name, found.version, value, bytes(raw) if keep else _NOTHING)

    return decode


def reading(group: str, kind: str, model: type[_Model]) -> Callable[[bytes | msgspec.Raw], _Model | Fault]:
    """How an object of a registered kind is read.

    Raises:
        ObjectError: from what is returned, if the object cannot be read
    """
    known = KINDS[group, kind]

    def read(raw: bytes | msgspec.Raw) -> _Model:
        _, value = known.decode(raw)
        if not isinstance(value, model):
            raise TypeError(f"{kind} is read as {type(value).__name__}, not as {model.__name__}")
        return value

    return read


read_volume_model: Final = reading(LONGHORN_GROUP, "Volume", Volume)
_read_image: Final = reading(LONGHORN_GROUP, "BackingImage", BackingImage)


def read_volume(raw: bytes | msgspec.Raw) -> VolumeSeen | Fault:
    """A volume with its condition.

    Raises:
        ObjectError: it cannot be read
    """
    volume = read_volume_model(raw)
    return volume if isinstance(volume, Fault) else VolumeSeen(volume, condition_of(bytes(raw)))


def condition_of(raw: bytes) -> Condition | None:
    """A volume's condition DiskAllocation."""
    return convert.volume_condition(raw, DISK_ALLOCATION)


def read_image(raw: bytes | msgspec.Raw) -> ImageSeen | Fault:
    """A backing image in both ways.

    Raises:
        ObjectError: it cannot be read
    """
    image, copies = _read_image(raw), convert.image_copies(bytes(raw))
    if isinstance(copies, Fault):
        return copies
    return image if isinstance(image, Fault) else ImageSeen(image, copies)


def read_schedule(raw: bytes | msgspec.Raw) -> DiskSchedule | Fault:
    """A DiskSchedule; what of it cannot be used is in its faults."""
    return convert.read(bytes(raw))


decode_schedule: Final = decoding(read_schedule, keep=True)


def schedule_seen(raw: bytes) -> Seen[DiskSchedule]:
    """A DiskSchedule as a write has answered it.

    Raises:
        ObjectError: the answer is no object
    """
    _, seen = decode_schedule(raw)
    if seen is None:
        raise AssertionError("every DiskSchedule matters")
    return seen
