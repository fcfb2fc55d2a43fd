"""Parts that all wire types share (metadata, conditions, decoding), and how models are read: errors name the object and the field. The
metadata of an object of any kind is read even if the rest of the object cannot be.

How objects of the API become models is derived. The fields of a model carry their paths; from these follow the wire type, which checks
types while it decodes, and the constructor.

    node_id: Annotated[str, "spec.nodeID"] = ""
    node_label: Annotated[str, "metadata.labels[longhornnode]"] = ""
    size: Annotated[int, "spec.volumeSize", read_size] = 0

Null, empty and absent values become the field's default. A field without default, or with a type behind its path, must not be null, and
is empty if absent. A function behind the paths gets what is at each of them instead, null included, and its parameters say which types
that may have. A function that needs wire types, which models do not know, is given to `Fields` by the field's name, if need be with the
types, and so are `Fields` of a model inside the model. The path "" is the object itself, of which a model inside the model is another
part. So is a field without a path, which is read only by `Fields` that are given `Fields` for it. Functions raise QuantityError, or
ObjectError with a path and no object.

The constructor of these three fields is:

    def construct(wire):
        part_metadata = wire.metadata or absent_part_metadata
        part_spec = wire.spec or absent_part_spec
        try:
            at = "spec.volumeSize"; value_size = convert_size(part_spec.volumeSize)
        except errors as error:
            raise locate(wire, at, error) from error
        return model(part_spec.nodeID or "", (part_metadata.labels or {}).get("longhornnode") or "", value_size)
"""

import re
from collections.abc import Callable
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import structs

from scheduler_core.errors import ObjectError, OversizeError, QuantityError, QuantityOverflowError
from scheduler_core.model.kube import Condition
from scheduler_core.structs import Struct, is_struct_type


class Wire(msgspec.Struct, rename="camel", gc=False):
    """Base of wire types. Keys are camelCase, unknown keys are ignored, and a null field counts as absent."""


class OwnerReference(Wire):
    """metadata.ownerReferences[]."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(Wire):
    """metadata of any object."""

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None


class WireCondition(Wire):
    """status.conditions[]."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


def conditions(wire: list[WireCondition] | None) -> tuple[Condition, ...]:
    """The conditions in the order printed; of equal types the first counts."""
    return tuple(
        Condition(entry.type, entry.status, entry.reason or "", entry.message or "", entry.last_transition_time or "")
        for entry in wire or ()
    )


def subject(kind: str, metadata: Metadata) -> str:
    """The object being read, for error messages: ``PersistentVolumeClaim shop/data``."""
    namespace = f"{metadata.namespace}/" if metadata.namespace else ""
    return f"{kind} {namespace}{metadata.name}"


_AnyWire = TypeVar("_AnyWire", bound=Wire)


def decode_object(kind: str, raw: object, wire: type[_AnyWire]) -> _AnyWire:
    """Checks a decoded JSON or YAML object against a wire type.

    Raises:
        ObjectError: a field is missing or wrong; names the object, the field and what was expected
    """
    try:
        return msgspec.convert(raw, wire)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise ObjectError(object_name(kind, raw), path.strip("`.").removeprefix("."), problem) from error
    except RecursionError as error:
        raise ObjectError(object_name(kind, raw), "", "is nested too deeply") from error


def decode_json(kind: str, raw: bytes | msgspec.Raw, wire: type[_AnyWire]) -> _AnyWire:
    """Decodes an object as the API server sends it, without a detour through dictionaries."""
    try:
        try:
            return msgspec.json.decode(raw, type=wire)
        except msgspec.ValidationError:
            return decode_object(kind, msgspec.json.decode(raw), wire)  # its error names the object
    except (msgspec.DecodeError, RecursionError) as error:
        raise ObjectError(kind, "", f"is not JSON: {error}") from error


def object_name(kind: str, raw: object) -> str:
    """How messages call a decoded object: ``Pod shop/web-0``."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    if not isinstance(metadata, dict):
        return f"{kind} (no name)"
    namespace = metadata.get("namespace")
    return f"{kind} {f'{namespace}/' if namespace else ''}{metadata.get('name')}"


_HEADER_KEYS = {"version": "resourceVersion", "created": "creationTimestamp", "deleted": "deletionTimestamp"}


class Header(Struct, frozen=True, rename=_HEADER_KEYS):
    """An object's name, version, UID, times of creation and deletion (RFC 3339), and finalizers."""

    name: str = ""
    version: str = ""
    uid: str = ""
    created: str = ""
    deleted: str | None = None
    finalizers: tuple[str, ...] = ()

    @property
    def deleting(self) -> bool:
        return self.deleted is not None


class _Object(Struct):
    metadata: Header


def header(raw: bytes | msgspec.Raw) -> Header:
    """The header of an object."""
    try:
        return msgspec.json.decode(raw, type=_Object).metadata
    except msgspec.DecodeError as error:
        raise ObjectError("an object", "metadata", str(error)) from error


def stored_body(raw: bytes) -> dict[str, Any]:
    """The object to replace, without managedFields, which are large and never written back."""
    body: dict[str, Any] = msgspec.json.decode(raw)
    return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key != "managedFields"}}


_Model = TypeVar("_Model")
_Value = TypeVar("_Value")
_Wire = TypeVar("_Wire", bound=Wire)
_KEY = re.compile(r"(.+)\[(.+)\]")
_LITERALS = (str, int, tuple)
_METADATA = dict(zip(Metadata.__struct_encode_fields__, Metadata.__struct_fields__, strict=True))


class _Source(NamedTuple):
    """Where a field of a model comes from: what is at its paths, of these types, converted by a function."""

    name: str
    paths: list[str]
    types: list[Any]
    convert: Callable[..., Any] | None
    default: Any


class Fields(Generic[_Model]):
    """How objects of one kind are read, derived on first use; `kind` is what messages call them."""

    def __init__(
        self,
        kind: str,
        model: type[_Model],
        /,
        *,
        needs_metadata: bool = True,
        **conversions: "Callable[..., Any] | Fields[Any] | tuple[Any, ...]",
    ) -> None:
        self.kind = kind
        self._model: Any = model
        self._needs_metadata = needs_metadata
        self._conversions = conversions

    @classmethod
    def by_hand(cls, kind: str, wire: type[_Wire], construct: Callable[[_Wire], _Model]) -> "Fields[_Model]":
        """The same for a wire type that is written by hand."""
        fields = cls.__new__(cls)
        fields.kind = kind
        fields.wire = wire
        fields.construct = construct
        return fields

    def extend(self, **conversions: "Callable[..., Any] | Fields[Any] | tuple[Any, ...]") -> "Fields[_Model]":
        return Fields(
            self.kind, self._model, needs_metadata=self._needs_metadata, **{**self._conversions, **conversions}
        )

    def read(self, raw: object) -> _Model:
        """The model of one decoded object."""
        return self.construct(decode_object(self.kind, raw, self.wire))

    def decode(self, raw: bytes | msgspec.Raw) -> _Model:
        """The model of one object as the API server sends it."""
        return self.construct(decode_json(self.kind, raw, self.wire))

    def part(self, path: str) -> Any:
        return self._parts[path]

    @cached_property
    def wire(self) -> type[Wire]:
        wire: type[Wire] = self._parts[""]
        return wire

    @cached_property
    def _sources(self) -> list[_Source]:
        hints = get_type_hints(self._model, include_extras=True)
        sources = []
        for field in structs.fields(self._model):
            hint = hints[field.name]
            marks = getattr(hint, "__metadata__", ())
            convert = self._conversions.get(field.name, next(filter(callable, marks), None))
            paths = [mark for mark in marks if isinstance(mark, str)] or [""] * isinstance(convert, Fields)
            if paths:
                sources.append(_source(field, get_args(hint)[0] if marks else hint, paths, convert))
        return sources

    @cached_property
    def _parts(self) -> dict[str, Any]:
        """The wire types of the object, at "", and of the objects inside it, by path."""
        parts: dict[str, Any] = {}
        self._derive(self.tree, "", parts)
        return parts

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The types in the object, by path: of an object inside it those in that one."""
        tree: dict[str, Any] = {"metadata": {}} if self.kind and self._needs_metadata else {}
        for source in self._sources:
            for path, kind in zip(source.paths, source.types, strict=True):
                if isinstance(kind, Fields):
                    _merge(tree, kind.tree)
                else:
                    *outer, name = _split(path)[0]
                    branch: Any = map_of(_without_none(kind)) if _split(path)[1] else kind
                    for each in reversed((*outer, name)):
                        branch = {each: branch}
                    _merge(tree, branch)
        return tree

    def _derive(self, tree: dict[str, Any], path: str, parts: dict[str, Any]) -> Any:
        base = Metadata if path == "metadata" else Wire
        members: list[Any] = []
        for name, entry in tree.items():
            if name == "metadata" and self._needs_metadata:
                members.append((name, self._derive(entry, name, parts)))
            elif isinstance(entry, dict):
                members.append((name, self._derive(entry, f"{path}.{name}".strip("."), parts) | None, None))
            elif base is not Metadata or name not in _METADATA:
                members.append((name, entry, None if type(None) in get_args(entry) else entry()))
        name = path.replace(".", "_") or self._model.__name__
        parts[path] = msgspec.defstruct(name, members, bases=(base,), kw_only=True)
        return parts[path]

    @cached_property
    def construct(self) -> Callable[[Any], _Model]:
        """Makes the model of its wire type."""
        names: dict[str, Any] = {"model": self._model, "locate": self._locate, "errors": (QuantityError, ObjectError)}
        lines = ["def construct(wire):"]
        for path in sorted(filter(None, self._parts)):
            names[f"absent_{_variable(path)}"] = self._parts[path]()
            lines.append(f" {_variable(path)} = {_expression(path)} or absent_{_variable(path)}")
        order = self._model.__struct_fields__
        arguments: list[str] = []
        conversions = []
        for name, paths, _, convert, default in self._sources:
            names |= {f"convert_{name}": convert, f"default_{name}": default}
            values = ", ".join(map(_expression, paths))
            if convert is None:
                value = f"{values} or {repr(default) if isinstance(default, _LITERALS) else f'default_{name}'}"
            else:
                at = ".".join(filter(None, _KEY.split(paths[-1])))
                conversions.append(f"  at = {at!r}; value_{name} = convert_{name}({values})")
                value = f"value_{name}"
            # Python is quicker with arguments that have no names.
            arguments.append(value if order[len(arguments)] == name else f"{name}={value}")
        if conversions:
            lines += [" try:", *conversions, " except errors as error:", "  raise locate(wire, at, error) from error"]
        lines.append(f" return model({', '.join(arguments)})")
        exec("\n".join(lines), names)  # noqa: S102 # as dataclasses make __init__: 30 % faster than a loop over fields
        construct: Callable[[Any], _Model] = names["construct"]
        return construct

    def _locate(self, wire: Any, path: str, error: QuantityError | ObjectError) -> ObjectError:
        name = subject(self.kind, wire.metadata or Metadata()) if self.kind else ""
        if isinstance(error, ObjectError):
            return type(error)(name, error.field, error.problem)
        kind = OversizeError if isinstance(error, QuantityOverflowError) else ObjectError
        return kind(name, path, str(error))


def value_at(
    kind: str, path: str, default: _Value, convert: Callable[..., _Value] | None = None, *, needs_metadata: bool = True
) -> Fields[_Value]:
    """How the value at one path of an object is read."""
    marks = (path, convert) if convert else (path,)
    model: Any = msgspec.defstruct("Value", [("value", Annotated[(type(default), *marks)], default)])
    fields: Fields[Any] = Fields(kind, model, needs_metadata=needs_metadata)
    return Fields.by_hand(kind, fields.wire, lambda wire: fields.construct(wire).value)


def _source(field: structs.FieldInfo, hint: Any, paths: list[str], convert: Any) -> _Source:
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    nested: Any = next((kind for kind in (hint, *get_args(hint)) if is_struct_type(kind)), None)
    if isinstance(convert, Fields) or (convert is None and nested is not None):
        inner: Any = convert or Fields("", nested)
        if paths == [""]:
            return _Source(field.name, paths, [inner], inner.construct, default)
        construct = inner.construct
        if get_origin(hint) is tuple:
            return _Source(
                field.name, paths, [list_of(inner.wire)], lambda entries: tuple(map(construct, entries or ())), default
            )
        return _Source(
            field.name, paths, [inner.wire | None], lambda entry: None if entry is None else construct(entry), default
        )
    if isinstance(convert, tuple):
        function, *types = convert
        return _Source(field.name, paths, types, function, default)
    if convert is None or isinstance(convert, type):
        may_be_null = convert is None and default is not msgspec.NODEFAULT
        return _Source(
            field.name, paths, [hint | None if may_be_null else hint], None, default if may_be_null else hint()
        )
    types = [kind for name, kind in get_type_hints(convert).items() if name != "return"]
    return _Source(field.name, paths, types, convert, default)


def _without_none(kind: Any) -> Any:
    return Union[tuple(each for each in get_args(kind) if each is not NoneType)]  # noqa: UP007 # known at run time


def list_of(kind: Any) -> Any:
    return list[kind] | None


def map_of(kind: Any) -> Any:
    return dict[str, kind] | None


def _merge(tree: dict[str, Any], branch: dict[str, Any]) -> None:
    for name, entry in branch.items():
        if isinstance(entry, dict) and isinstance(tree.get(name), dict):
            _merge(tree[name], entry)
        elif isinstance(entry, dict) or name not in tree:
            tree[name] = entry
        elif not isinstance(tree[name], dict) and tree[name] != entry:
            raise TypeError(f"{name} is read both as {tree[name]} and as {entry}")


def _split(path: str) -> tuple[list[str], str]:
    """The names in a path, and the key in its brackets."""
    match = _KEY.fullmatch(path)
    return (match[1].split("."), match[2]) if match else (path.split("."), "")


def _variable(path: str) -> str:
    return f"part_{path.replace('.', '_')}"


def _expression(path: str) -> str:
    """What gets the value at a path from its part."""
    if not path:
        return "wire"
    (*outer, name), key = _split(path)
    attribute = _METADATA.get(name, name) if outer == ["metadata"] else name
    value = f"{_variable('.'.join(outer)) if outer else 'wire'}.{attribute}"
    return f"({value} or {{}}).get({key!r})" if key else value
