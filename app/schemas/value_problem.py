"""What is wrong with a value that pydantic refuses, in this program's words."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_TEXTS: Final = {
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "float_parsing": "expected a number",
    "bool_parsing": "expected true or false",
    "enum": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "extra_forbidden": "there is no such parameter",
    "value_error": "{error}",
}


def value_problem(error: ErrorDetails) -> str:
    return _TEXTS.get(error["type"], "is not valid").format_map(error.get("ctx", {}))


def problem_of(error: BaseException | None, other: str) -> str:
    """Returns what is wrong with the first value that pydantic refuses; `other` for an error that is not pydantic's."""
    return value_problem(error.errors(include_url=False)[0]) if isinstance(error, ValidationError) else other
