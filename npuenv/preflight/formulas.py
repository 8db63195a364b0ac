"""What the shell reader does not compute itself: `$((1024 * 2))`, nested `${X:-"${Y}/z"}`, and `${1:-vllm}`.

Start from `Variables`.

Each is replaced in the text by a variable of the same length, so that every offset stays; its value is computed from
the variables of the moment it is asked for.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping

from npuenv.core.shellscript import LONGEST, UNKNOWN, expand

_START = re.compile(r"\$\(\(|\$\{([A-Za-z_]\w*|[1-9]):?-")
_NAME = "_\u00e6"  # no shell variable is called that
_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_MOST = 10**15  # beyond this nobody means a number of tokens, and nothing has to be computed


class Variables(MutableMapping[str, str]):
    """The variables of a script, and formulas that look like variables. "1" is the script's first argument."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = dict(known)
        self._formulas: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        formula = self._formulas.get(name)
        return self._known[name] if formula is None else self._computed(formula)

    def __setitem__(self, name: str, value: str) -> None:
        self._known[name] = value if len(value) <= LONGEST else UNKNOWN

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        yield from self._formulas

    def __len__(self) -> int:
        return len(self._known) + len(self._formulas)

    def take(self, text: str) -> str:
        """The text with a variable in place of each formula; formulas over several lines stay."""
        parts, at = list[str](), 0
        for found in _START.finditer(text):
            if found.start() < at:
                continue
            end = _end(text, found.start())
            formula = text[found.start() : end]
            is_plain = found[1] is not None and not found[1].isdigit() and not re.search(r"[\"'$]", formula[2:])
            if end and "\n" not in formula and not is_plain:
                name = (_NAME + str(len(self._formulas))).ljust(len(formula) - 3, "_")
                if len(name) == len(formula) - 3:
                    self._formulas[name] = formula
                    parts += [text[at : found.start()], f"${{{name}}}"]
                    at = end
        return "".join([*parts, text[at:]])

    def _computed(self, formula: str) -> str:
        if formula.startswith("$(("):
            return self._number(formula[3:-2])
        found = _START.match(formula)
        assert found is not None and found[1] is not None  # this is how it was found
        value = self._known.get(found[1], "")
        return value or self.inside(formula[found.end() : -1])

    def inside(self, word: str) -> str:
        """A word expanded, formulas inside of it too."""
        inner = Variables(self._known)
        return expand(inner.take(word), dict(inner))

    def _number(self, text: str) -> str:
        """A sum in whole numbers; UNKNOWN where it holds anything else."""
        named = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", text)
        try:
            value = self._value(ast.parse(named.strip().replace("/", "//"), mode="eval").body)
        except (SyntaxError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError, MemoryError):
            return UNKNOWN  # the text of a foreign script: whatever it is, it decides no number
        return str(value)

    def _value(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return int(self._known[node.id])
        if isinstance(node, ast.UnaryOp):
            return _OPERATORS[type(node.op)](self._value(node.operand))
        if not isinstance(node, ast.BinOp):
            raise ValueError(ast.dump(node))
        left, right = self._value(node.left), self._value(node.right)
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # as C does, towards zero
            return quotient if isinstance(node.op, ast.FloorDiv) else left - quotient * right
        value = _OPERATORS[type(node.op)](left, right)
        if abs(value) > _MOST:
            raise ValueError(value)
        return value


def _end(text: str, start: int) -> int:
    """The offset behind a formula; 0 where it does not end."""
    opening, closing = ("(", ")") if text.startswith("$((", start) else ("{", "}")
    depth = 0
    for at in range(start + 1, min(len(text), start + 2000)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return at + 1
    return 0
