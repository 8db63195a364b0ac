"""Which devices a role of a ROLL configuration uses: `list(range(0,8))`, `[0,1,2]`, `list(range(0,4)) + [6]`, `0-3,5`.

ROLL evaluates these texts; here they are parsed, and nothing in them is ever run.
"""

from __future__ import annotations

import ast
import re

from trainer.sections import BadSetting

_MOST_DEVICES = 1 << 14
_LONGEST = 100_000  # characters
# Whatever else may be written in Python never reaches its parser.
_HARMLESS = re.compile(r"(?:list|range|[0-9\s,()\[\]+-])*", re.ASCII)
_DEEPEST = 64  # of nested brackets: more would exhaust Python's own parser
_SPANS = re.compile(r"\s*\d{1,9}(\s*-\s*\d{1,9})?\s*(,\s*\d{1,9}(\s*-\s*\d{1,9})?\s*)*", re.ASCII)
_ACCEPTED = "Accepted: list(range(0,8)), [0,1,2], sums of those, or 0-3,5"


def parse_device_mapping(text: str) -> tuple[int, ...]:
    """The numbers of the devices, in the order they are written.

    Raises BadSetting for any other spelling, for a negative or duplicate number, and for more than 16384 devices.
    Example: "list(range(0,4)) + [6]" -> (0, 1, 2, 3, 6)
    """
    if len(text) > _LONGEST:
        raise BadSetting(f"a device_mapping of {len(text)} characters is too long. {_ACCEPTED}")
    found = _spans(text) if _SPANS.fullmatch(text) else _expression(text)
    if not found:
        raise BadSetting(f"device_mapping={_short(text)} names no device. {_ACCEPTED}")
    seen: set[int] = set()
    for number in found:
        if not 0 <= number < _MOST_DEVICES:
            raise BadSetting(f"device_mapping={_short(text)} names device {number}: numbers go from 0 to 16383")
        if number in seen:
            raise BadSetting(f"device_mapping={_short(text)} names device {number} twice")
        seen.add(number)
    return tuple(found)


def _spans(text: str) -> list[int]:
    found: list[int] = []
    for span in text.split(","):
        first, dash, last = span.partition("-")
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise BadSetting(f"device_mapping={_short(text)} has a span from {low} down to {high}")
        found += _numbers(range(low, high + 1), len(found), text)
    return found


def _expression(text: str) -> list[int]:
    if not _HARMLESS.fullmatch(text):
        raise BadSetting(f"device_mapping={_short(text)} holds more than numbers, list and range. {_ACCEPTED}")
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise BadSetting(f"device_mapping={_short(text)} is nested too deeply. {_ACCEPTED}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BadSetting(f"device_mapping={_short(text)} cannot be read. {_ACCEPTED}") from error
    return _terms(tree.body, text)


def _terms(node: ast.expr, text: str) -> list[int]:
    """The parts of a sum, left to right; not by recursion, since a sum may be long."""
    parts: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts.append(node.right)
        node = node.left
    found: list[int] = []
    for part in [node, *reversed(parts)]:
        found += _numbers(_listed(part, text), len(found), text)
    return found


def _listed(node: ast.expr, text: str) -> range | list[int]:
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_integer(each, text) for each in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "list" and len(node.args) == 1:
            return _listed(node.args[0], text)
        if node.func.id == "range":
            bounds = [_integer(each, text) for each in node.args]
            if 1 <= len(bounds) <= 3 and (len(bounds) < 3 or bounds[2] != 0):
                return range(*bounds)
    if isinstance(node, ast.BinOp):
        raise BadSetting(f"device_mapping={_short(text)} holds a sum in brackets or another sign than +. {_ACCEPTED}")
    raise BadSetting(f"device_mapping={_short(text)} is none of the spellings. {_ACCEPTED}")


def _integer(node: ast.expr, text: str) -> int:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sign * node.value
    raise BadSetting(f"device_mapping={_short(text)} holds something else than whole numbers. {_ACCEPTED}")


def _numbers(found: range | list[int], before: int, text: str) -> list[int]:
    """The numbers, if they are not too many: a range's length is known before it is written out."""
    try:
        count = len(found)
    except OverflowError:
        count = _MOST_DEVICES + 1
    if before + count > _MOST_DEVICES:
        raise BadSetting(f"device_mapping={_short(text)} names more than {_MOST_DEVICES} devices")
    return list(found)


def _short(text: str) -> str:
    line = " ".join(text[:200].split())
    return line if len(line) <= 60 else f"{line[:57]}..."
