"""Informers: the objects of one kind with their versions, and how they are read.

An object that cannot be read is kept as a `Fault`, so that its name and its problem are known. DiskSchedules, Volumes
and Replicas are kept together with the bytes they were read from, because every write is based on them.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

import msgspec

from app.kube.reflector import Key
from app.kube.store import Objects
from scheduler_core import errors
from scheduler_core.convert import disk_schedule as convert, snapshot_kinds, wire_types
from scheduler_core.disk_schedule.writes import DISK_ALLOCATION
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import BackingImageCopies, Fault
from scheduler_core.structs import Struct

_Value = TypeVar("_Value")
_NO_BYTES = b""


class InformerObject(Struct, Generic[_Value], frozen=True):
    """An object at one version."""

    name: str  # the object's name
    version: str  # its resourceVersion
    value: _Value | Fault  # what it says, or why it cannot be read
    # The bytes it was read from, without managedFields; empty for kinds that are not written from this cache.
    raw: bytes = _NO_BYTES


class VolumeObject(Struct, frozen=True):
    """A volume and its condition DiskAllocation."""

    volume: longhorn.Volume
    condition: kube.Condition | None


class ImageObject(Struct, frozen=True):
    """A backing image in two forms: for placement, and for its controller."""

    image: longhorn.BackingImage
    copies: BackingImageCopies


Version: TypeAlias = _Value | Fault | None
"""The value of an object before or after a change; None if there is no object."""


class Informer(Objects[InformerObject[_Value]]):
    """The objects of one kind, at the newest version that this process knows. `revision` grows with every change. A
    handler gets a name, and the values before and after: they differ, or an object that cannot be read has another version.
    `readable` and `unreadable` are the values by name; they change while the caller awaits.

    Args:
        read: returns what an object says; may raise an ObjectError
        keep: whether the bytes are stored, too
    """

    def __init__(self, read: Callable[[bytes | msgspec.Raw], _Value | Fault], *, keep: bool = False) -> None:
        super().__init__()
        self.revision = 0
        self.readable: dict[str, _Value] = {}
        self.unreadable: dict[str, Fault] = {}
        self._read = read
        self._keep = keep
        self._waiting: dict[Key, asyncio.Event] = {}

    def value(self, name: str) -> Version[_Value]:
        cached = self.get(name)
        return None if cached is None else cached.value

    def decode(self, raw: bytes | msgspec.Raw) -> tuple[Key, InformerObject[_Value]]:
        """Reads an object that a watch delivers. It is the cached one if it has this version: mostly this process has
        written it. Raises an ObjectError if it has no name.
        """
        metadata = wire_types.header(raw)
        cached = self.get(metadata.name)
        if cached is not None and cached.version == metadata.version != "":
            return metadata.name, cached
        return metadata.name, self.object_of(raw)

    def object_of(self, raw: bytes | msgspec.Raw) -> InformerObject[_Value]:
        """Reads an object; one that cannot be read has a Fault. Raises an ObjectError if it has no name."""
        metadata = wire_types.header(raw)
        try:
            value = self._read(raw)
        except errors.ObjectError as error:
            value = Fault(error.field, error.problem)
        return InformerObject(metadata.name, metadata.version, value, _body(raw) if self._keep else _NO_BYTES)

    def change(self, key: Key, value: InformerObject[_Value] | None) -> None:
        """Replaces or removes one object; called by the reflector. An event that is older than the response to a write
        is ignored.
        """
        cached = self.get(key)
        if value is None or cached is None or not _is_newer(cached.version, value.version):
            super().change(key, value)

    def store(self, raw: bytes) -> InformerObject[_Value]:
        """Stores an object that was just read or written, before the watch delivers it. A newer version stays, and an
        object that was deleted meanwhile stays deleted.
        """
        written = self.object_of(raw)
        cached = self.get(written.name)
        if cached is not None and _is_newer(written.version, cached.version):
            self._set(written.name, written)
        return written

    async def wait_for_other_version(self, name: str, version: str, seconds: float) -> bool:
        """Waits at most `seconds` until the version of a cached object is not `version`; returns whether it came. A
        removal counts as a different version.

        After a conflict there is another version, and the watch is about to deliver it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (cached := self.get(name)) is not None and cached.version == version:
                    await self._waiting.setdefault(name, asyncio.Event()).wait()
        cached = self.get(name)
        return cached is None or cached.version != version

    def _notify(self, key: Key, before: InformerObject[_Value] | None, after: InformerObject[_Value] | None) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.set()
        old_value = before.value if before else None
        new_value = after.value if after else None
        name = str(key)
        if isinstance(new_value, Fault):
            self.unreadable[name] = new_value
            self.readable.pop(name, None)
        elif new_value is not None:
            self.readable[name] = new_value
            self.unreadable.pop(name, None)
        else:
            self.readable.pop(name, None)
            self.unreadable.pop(name, None)
        # An object that cannot be read may have changed although its Fault is the same: it is being deleted, for example.
        hidden_change = isinstance(new_value, Fault) and before and after and before.version != after.version
        if old_value == new_value and not hidden_change:
            return
        self.revision += 1
        for handler in self._handlers:
            handler(key, old_value, new_value)


def _is_newer(version: str, other: str) -> bool:
    return version.isdigit() and other.isdigit() and int(version) > int(other)


def _body(raw: bytes | msgspec.Raw) -> bytes:
    # They are large and never written back.
    kept = bytes(raw)
    if b'"managedFields"' not in kept:
        return kept
    body = msgspec.json.decode(kept, type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(body["metadata"], type=dict[str, msgspec.Raw])
    metadata.pop("managedFields", None)
    body["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
    return msgspec.json.encode(body)


def read_volume(raw: bytes | msgspec.Raw) -> VolumeObject:
    """Reads a volume with its condition. Raises an ObjectError if it cannot be read."""
    return VolumeObject(snapshot_kinds.VOLUME.decode(raw), condition_of(raw))


def condition_of(raw: bytes | msgspec.Raw) -> kube.Condition | None:
    return convert.volume_condition(raw, DISK_ALLOCATION)


def read_image(raw: bytes | msgspec.Raw) -> ImageObject | Fault:
    """Reads a backing image in both forms. Raises an ObjectError if it cannot be read."""
    image = snapshot_kinds.BACKING_IMAGE.decode(raw)
    copies = convert.backing_image_copies(raw)
    return copies if isinstance(copies, Fault) else ImageObject(image, copies)
