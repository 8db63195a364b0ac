"""What others wrote, so that it neither paints nor moves nor hides anything: `clean`."""

from __future__ import annotations


def clean(text: str) -> str:
    """One line without what no screen shows: control and direction characters as `\\x1b`, line ends as a space."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each in "\t\r\n\u3000" else escaped(each) for each in text)


def escaped(character: str) -> str:
    """How a character that no screen shows is written: `\\x1b`."""
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
