"""Every exception that the core raises, as one tree.

    CoreError
    ├── QuantityError      a text is no Kubernetes quantity, or does not fit 64 bits
    │   └── QuantityOverflowError    it is one, and does not fit 64 bits
    ├── ObjectError        a Kubernetes object cannot be read: names the object and the field
    │   └── OversizeError            a size in it does not fit 64 bits, which the API server accepts
    ├── SettingError       a Longhorn setting's value does not parse: names the setting
    ├── ResolutionError    a pod's volumes cannot be resolved
    │   └── MissingObjectError       because an object does not exist: names it
    ├── PolicyError        a policy file cannot be used: names each entry that is wrong (generic/policy.py)
    └── UndecidableError   a predicate of a policy cannot be decided for any node (generic/cycle_state.py)

A node that does not fit is not an exception but a `Verdict` with a `Reason` (model/verdict.py).
"""


class CoreError(Exception):
    """A fault in the input. Its text is one sentence for an administrator."""


class QuantityError(CoreError):
    """A text is no Kubernetes quantity, or its value is too large. The value must fit a signed 64-bit integer."""


class QuantityOverflowError(QuantityError):
    """A quantity does not fit a signed 64-bit integer."""


class ObjectError(CoreError):
    """A field of a Kubernetes object has a wrong type or value.

    Args:
        subject: the object, as ``kind namespace/name``
        field: the path of the field inside the object, ``""`` for the object as a whole
        problem: what is wrong with it
    """

    def __init__(self, subject: str, field: str, problem: str) -> None:
        super().__init__(": ".join(part for part in (subject, field, problem) if part))
        self.subject = subject
        self.field = field
        self.problem = problem


class OversizeError(ObjectError):
    """A size in a Kubernetes object does not fit 64 bits. The API server accepts it."""


class SettingError(CoreError):
    """A Longhorn setting has a value of the wrong kind. Longhorn itself then places nothing."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f"Setting.longhorn.io {name}: value: {value!r} is not {expected}")
        self.name = name
        self.value = value


class ResolutionError(CoreError):
    """A pod names an object that does not exist or contradicts it. Nothing can be decided about the pod."""


class MissingObjectError(ResolutionError):
    """An object that the pod refers to does not exist. The reference may be indirect."""

    def __init__(self, kind: str, name: str, named_by: str) -> None:
        super().__init__(f"{kind} {name} does not exist (named by {named_by})")
        self.kind = kind
        self.name = name
