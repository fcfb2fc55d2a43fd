"""Escapes what a terminal shows as something else, or not at all, in texts that callers and the cluster choose."""

import re

# Letters and marks by Unicode's categories that are shown as nothing (Default_Ignorable_Code_Point) or as a blank: Hangul
# fillers, Khmer inherent vowels, Mongolian and other variation selectors, the grapheme joiner, the blank Braille pattern.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def escape_invisible(text: str, keep: str = "") -> str:
    r"""Returns a text with every character escaped that is not visible as itself, but for those in `keep`.

    Those are control characters (C0, DEL, C1), line breaks, bidirectional formatting, zero-width characters and unusual spaces.

    >>> escape_invisible("node\x1b[2J"), escape_invisible("a\u202eb")
    ('node\\x1b[2J', 'a\\u202eb')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter if letter in keep or (letter.isprintable() and not _INVISIBLE.match(letter)) else ascii(letter)[1:-1]
        for letter in text
    )
