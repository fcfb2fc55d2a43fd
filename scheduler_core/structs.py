"""Values of the core and the app: frozen structs, which C code defines, makes and compares, and dataclasses where a field is not compared,
not shown, or computed.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeGuard

from msgspec import Struct, field, structs

if TYPE_CHECKING:
    # mypy checks the names and types of the changes of this function alone, and takes a struct for a dataclass.
    from dataclasses import replace
else:

    def replace(value, /, **changes):
        return (structs if isinstance(value, Struct) else dataclasses).replace(value, **changes)


def is_struct_type(kind: Any) -> TypeGuard[type[Struct]]:
    """Whether this is a class of structs."""
    return isinstance(kind, type) and issubclass(kind, Struct)


__all__ = ["Struct", "field", "is_struct_type", "replace"]
