"""What must not reach a terminal, or any report: `clean`."""

from __future__ import annotations

# Changes the direction or the order of the text around it, or hides in it.
_INVISIBLE = frozenset(map(chr, (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)))


def clean(text: str) -> str:
    """One line of text without control characters: they show as `\\x1b`, a line end or tab as a space.

    What a program printed is shown as it is, and must neither paint nor move the cursor nor reorder the line.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() and each not in _INVISIBLE else " " if each in "\t\r\n\u3000" else _escaped(each)
        for each in text
    )


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
