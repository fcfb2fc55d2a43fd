"""What is escaped in a text for a terminal."""

import pytest

from app.escaping import escape_invisible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("node\x1b[2J", r"node\x1b[2J", id="ASCII alone"),
        pytest.param("ä\x1b[2J", r"ä\x1b[2J", id="beside other letters"),
        pytest.param("a\u202eb", r"a\u202eb", id="direction"),
        pytest.param("a/b:c ä ü 漢", "a/b:c ä ü 漢", id="ordinary letters"),
        pytest.param("a\u3164b", r"a\u3164b", id="a letter that is shown as nothing"),
    ],
)
def test_what_is_not_visible_as_itself_is_escaped(text: str, shown: str) -> None:
    assert escape_invisible(text) == shown


def test_a_character_to_keep_is_not_escaped() -> None:
    assert escape_invisible("a\nb\r", keep="\n") == "a\nb\\r"
