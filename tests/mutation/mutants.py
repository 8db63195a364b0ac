"""Small changes of meaning in a module's source, each of which a test should notice.

A mutant is one piece of text put in place of another; the rest of the file stays byte for byte. What no user could
tell from the original is left out where it can be known without running: annotations, docstrings, `__repr__`, imports
for type checking, assertions, logging, decorators, time limits.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS = {
    "startswith": "endswith",
    "endswith": "startswith",
    "partition": "rpartition",
    "rpartition": "partition",
    "fullmatch": "match",
    "match": "search",
}
_EMPTY = {"bool": "False", "str": '""', "int": "0", "float": "0.0", "tuple": "()", "list": "[]", "dict": "{}",
          "set": "set()", "Sequence": "()", "Mapping": "{}", "frozenset": "frozenset()"}  # fmt: skip
_ENDS = {"0": "-1", "-1": "0"}
_PATTERNS = {"compile", "match", "search", "fullmatch", "sub", "findall", "finditer", "split"}
# Calls whose loss, or whose arguments' order, is not what a user sees, or is seen by every import.
_UNSEEN = {"debug", "info", "warning", "log", "print", "flush", "sleep", "cache", "lru_cache", "clear", "cache_clear"}
_UNORDERED = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "min", "max", "cast", "print", "field"}
_WAITING = re.compile(r"(?i)time_?out|grace|retr(y|ies)|patience|_s$|poll|workers|cache|frozen|slots|kw_only|indent")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. `start` and `end` are places in the file's bytes."""

    path: str
    within: str  # the function it lies in, with its class; for a module's constant: the constant's name
    line: int  # from 1
    column: int  # from 1, in bytes
    kind: str
    before: str
    after: str
    start: int
    end: int
    same: int  # how many equal changes stand before it in the same function
    is_in_function: bool

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.kind} {short(self.before)} -> {short(self.after)}"

    @property
    def key(self) -> str:
        """The same for as long as the function around it says the same, wherever it stands in the file."""
        ordinal = f" #{self.same}" if self.same else ""
        return f"{self.path} {self.within}: {self.kind}: {short(self.before)} -> {short(self.after)}{ordinal}"

    def applied(self, source: bytes) -> bytes:
        assert source[self.start : self.end] == self.before.encode()
        return source[: self.start] + self.after.encode() + source[self.end :]


def short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 70 else f"{flat[:50]}...{flat[-17:]}"


def mutants_of(path: str, source: bytes) -> tuple[Mutant, ...]:
    """Every mutant of a file, in the order of its places. A few do not parse: see `is_another`."""
    reader = _Reader(source)
    reader.read(ast.parse(source))
    found: list[Mutant] = []
    counted: dict[tuple[str, str, str, str], int] = {}
    for change in sorted(reader.changes, key=lambda change: (change.start, change.kind, change.after)):
        text = source[change.start : change.end].decode()
        if text == change.after:
            continue
        alike = (change.within, change.kind, short(text), short(change.after))
        line = source.count(b"\n", 0, change.start) + 1
        column = change.start - source.rfind(b"\n", 0, change.start)
        found.append(Mutant(path, change.within, line, column, change.kind, text, change.after, change.start,
                            change.end, counted.get(alike, 0), change.is_in_function))  # fmt: skip
        counted[alike] = counted.get(alike, 0) + 1
    return tuple(found)


def is_another(mutant: Mutant, source: bytes) -> bool:
    """True when the changed file parses, and as something else than the original."""
    try:
        return ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    except (SyntaxError, ValueError):
        return False


def drawn(mutants: Sequence[Mutant], count: int, seed: int, sources: Mapping[str, bytes]) -> tuple[Mutant, ...]:
    """So many of them, by chance, always the same ones.

    A kind has at most a sixth of them, a function two, a file a fifth or twice its share.

    A mutant's turn depends on its key alone, so that an edit elsewhere hardly changes what is drawn.
    """
    chosen: list[Mutant] = []
    num_files = len({mutant.path for mutant in mutants})
    limits = {"kind": -(-count // 6), "within": 2, "path": max(-(-count // 5), -(-2 * count // max(1, num_files)))}
    taken: dict[tuple[str, str], int] = {}
    for mutant in sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest()):
        function = f"{mutant.path} {mutant.within}"
        own = {"kind": mutant.kind, "within": function, "path": mutant.path}
        if any(taken.get(pair, 0) >= limits[pair[0]] for pair in own.items()):
            continue
        if not is_another(mutant, sources[mutant.path]):
            continue
        chosen.append(mutant)
        for pair in own.items():
            taken[pair] = taken.get(pair, 0) + 1
        if len(chosen) == count:
            break
    return tuple(sorted(chosen, key=lambda mutant: (mutant.path, mutant.start)))


@dataclass(frozen=True, slots=True)
class _Change:
    within: str
    kind: str
    start: int
    end: int
    after: str
    is_in_function: bool


class _Reader:
    """Walks a module once; `changes` holds what was found, in no order."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.changes: list[_Change] = []
        self._lines = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self._names: list[str] = []
        self._returns: list[str] = []
        self._members: dict[str, list[str]] = {}

    def read(self, module: ast.Module) -> None:
        for node in ast.walk(module):
            if _is_member(node):
                assert isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                known = self._members.setdefault(node.value.id, [])
                if node.attr not in known:
                    known.append(node.attr)
        for statement in module.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                self._constant(statement)
            else:
                self._statement(statement)

    def _constant(self, statement: ast.Assign | ast.AnnAssign) -> None:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if statement.value is not None and isinstance(target, ast.Name) and not _WAITING.search(target.id):
            self._names.append(target.id)
            self._expression(statement.value)
            self._names.pop()

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._names.append(node.name)
            for statement in node.body:
                if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                    self._statement(statement)
            self._names.pop()
        elif self._returns:  # at a module's top only constants count: the rest is imports
            self._inner(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        self._names.append(node.name)
        self._returns.append(ast.unparse(node.returns) if node.returns is not None else "")
        self._body(node.body[1:] if ast.get_docstring(node) is not None else node.body)
        self._returns.pop()
        self._names.pop()

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._dropped(statement)
            self._statement(statement)

    def _inner(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)):
            return
        if isinstance(node, ast.Return):
            self._returned(node)
        if isinstance(node, (ast.If, ast.While)):
            if "TYPE_CHECKING" in ast.unparse(node.test):
                return
            self._forced(node.test, ("False",) if isinstance(node, ast.While) else ("True", "False"))
        for field, value in ast.iter_fields(node):
            if field == "annotation":
                continue
            self._part(value)

    def _part(self, value: object) -> None:
        if isinstance(value, list):
            if value and isinstance(value[0], ast.stmt):
                self._body(value)
                return
            for each in value:
                self._part(each)
        elif isinstance(value, ast.expr):
            self._expression(value)
        elif isinstance(value, (ast.ExceptHandler, ast.withitem, ast.match_case)):
            for _, part in ast.iter_fields(value):
                self._part(part)

    def _expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.JoinedStr):  # places within it are not those of the file in every Python
            return
        self._here(node)
        for field, value in ast.iter_fields(node):
            if isinstance(node, ast.Call) and field == "keywords":
                for keyword in node.keywords:
                    if not _WAITING.search(keyword.arg or ""):
                        self._expression(keyword.value)
            elif isinstance(value, ast.expr):
                if field != "slice" or self._text(value) not in _ENDS:
                    self._expression(value)
            elif isinstance(value, list):
                for each in value:
                    if isinstance(each, ast.expr):
                        self._expression(each)
                    elif isinstance(each, ast.comprehension):
                        self._expression(each.iter)
                        for condition in each.ifs:
                            self._forced(condition, ("True", "False"))
                            self._expression(condition)

    def _here(self, node: ast.expr) -> None:
        if isinstance(node, ast.Compare):
            left: ast.expr = node.left
            for operator, right in zip(node.ops, node.comparators):
                self._between("comparison", left, right, *_COMPARED[type(operator)])
                left = right
        elif isinstance(node, ast.BoolOp):
            self._junction(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._replace("not dropped", node, self._text(node.operand))
        elif isinstance(node, ast.BinOp):
            self._computed(node)
        elif isinstance(node, ast.IfExp):
            self._forced(node.test, ("True", "False"))
        elif isinstance(node, ast.Constant):
            self._literal(node)
        elif isinstance(node, ast.Subscript):
            self._index(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMES:
            self._replace("name", node, _NAMES[node.id])
        elif _is_member(node):
            assert isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            members = self._members[node.value.id]
            if len(members) > 1:
                other = members[(members.index(node.attr) + 1) % len(members)]
                self._replace("member", node, f"{node.value.id}.{other}")
        elif isinstance(node, ast.Call):
            self._call(node)

    def _computed(self, node: ast.BinOp) -> None:
        if type(node.op) not in _COMPUTED or any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right)):
            return
        if isinstance(node.op, ast.Add) and any(_is_sequence(side) for side in (node.left, node.right)):
            self._replace("joined", node, self._text(node.left))
        elif not any(_is_sequence(side) for side in (node.left, node.right)):
            self._between("arithmetic", node.left, node.right, *_COMPUTED[type(node.op)])

    def _junction(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            self._between("junction", left, right, old, new)

    def _literal(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace("constant", node, str(not node.value))
        elif isinstance(node.value, (int, float)):
            self._replace("constant", node, str(node.value + 1))

    def _index(self, node: ast.Subscript) -> None:
        text = self._text(node.slice)
        if text in _ENDS:
            self._replace("index", node.slice, _ENDS[text])

    def _call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if owner is not None and called in _METHODS:
            end = self._end(node.func)
            self._add("method", end - len(called), end, _METHODS[called])
        if called in _PATTERNS and node.args and isinstance(owner, ast.Name) and owner.id == "re":
            self._pattern(node.args[0])
        first, second = (*node.args[:2], None, None)[:2]
        if first is None or second is None or called in _UNORDERED or called in _PATTERNS:
            return
        if _is_of_one_form(first, second):
            gap = self.source[self._end(first) : self._start(second)].decode()
            after = f"{self._text(second)}{gap}{self._text(first)}"
            self._add("arguments", self._start(first), self._end(second), after)

    def _pattern(self, node: ast.expr) -> None:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))):
            return
        start = self._start(node)
        text = self.source[start : self._end(node)].decode()
        for match in re.finditer(r"(?<=[^\\(])\?|\^|\$|\\[bAZ]|(?<=[^\\(])\+", text):
            if match[0] == "^" and text[match.start() - 1] == "[":
                continue
            at = start + len(text[: match.start()].encode())
            self._add("pattern", at, at + len(match[0]), "*" if match[0] == "+" else "")

    def _returned(self, node: ast.Return) -> None:
        if node.value is None or isinstance(node.value, ast.Constant):
            return
        kind = self._returns[-1]
        if "None" in kind:
            self._replace("returned", node.value, "None")
        elif (empty := _EMPTY.get(kind.split("[")[0])) is not None and self._text(node.value) != empty:
            self._replace("returned", node.value, empty)

    def _forced(self, test: ast.expr, values: Sequence[str]) -> None:
        for value in values:
            self._replace("condition", test, value)

    def _dropped(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
            if name in _UNSEEN:
                return
        elif isinstance(node, ast.Assign):
            if not isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
                return
        elif not isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)):
            return
        self._replace("dropped", node, "pass")

    def _between(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """The operator between two expressions; brackets and line ends may stand around it."""
        start, end = self._end(left), self._start(right)
        gap = self.source[start:end].decode()
        pattern = r"\s+".join(re.escape(word) for word in old.split())
        places = list(re.finditer(pattern, gap))
        if len(places) == 1 and "#" not in gap:
            self._add(kind, start + places[0].start(), start + places[0].end(), new)

    def _replace(self, kind: str, node: ast.expr | ast.stmt, after: str) -> None:
        self._add(kind, self._start(node), self._end(node), after)

    def _add(self, kind: str, start: int, end: int, after: str) -> None:
        within = ".".join(self._names)
        self.changes.append(_Change(within, kind, start, end, after, bool(self._returns)))

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        return self.source[self._start(node) : self._end(node)].decode()


def _is_member(node: ast.AST) -> bool:
    """`State.FAILED`, for one: a class's name, and a name in capitals."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    return bool(re.fullmatch(r"[A-Z]\w*[a-z]\w*", node.value.id) and re.fullmatch(r"[A-Z][A-Z0-9_]*", node.attr))


def _is_of_one_form(first: ast.expr, second: ast.expr) -> bool:
    """True for two names, two calls, two texts: of others an exchange would be seen by the first call."""
    if isinstance(first, ast.Constant) and isinstance(second, ast.Constant):
        return type(first.value) is type(second.value)
    return type(first) is type(second) and not isinstance(first, ast.Starred)


def _is_sequence(node: ast.expr) -> bool:
    if isinstance(node, (ast.Tuple, ast.List, ast.JoinedStr, ast.ListComp)):
        return True
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    if isinstance(node, ast.BinOp):
        return _is_sequence(node.left) or _is_sequence(node.right)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "tuple", "list", "sorted", "repr")


def marked(source: str, mutants: Sequence[Mutant]) -> str:
    """The module, saying which of its mutants' places are passed: see `_MARKER`.

    A constant's mutant is marked where the constant is read, or on entry of every function where nothing here reads it.
    """
    module = ast.parse(source)
    places: dict[ast.stmt, list[str]] = {}
    functions = [node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for mutant in mutants:
        if mutant.is_in_function:
            found = [_innermost(module, mutant.line)]
        else:
            found = list(_readers(functions, mutant.within)) or [_entry(function) for function in functions]
        for statement in found:
            places.setdefault(statement, []).append(mutant.key)
    _Marking(places).visit(module)
    body = module.body
    after_imports = next((n for n, node in enumerate(body) if not _is_head(node)), len(body))
    module.body = [*body[:after_imports], *ast.parse(_MARKER).body, *body[after_imports:]]
    return ast.unparse(ast.fix_missing_locations(module))


# Adds a mutant's key to the file that the environment names, once; programs that a test starts do so too.
_MARKER = """
def _mutant_passed(key, _known=set()):
    import os
    path = os.environ.get("MUTANTS_PASSED")
    if path and (path, key) not in _known:
        _known.add((path, key))
        with open(path, "ab") as file:
            file.write(key.encode() + b"\\n")
"""


def _is_head(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _innermost(module: ast.Module, line: int) -> ast.stmt:
    """The shortest statement around a line."""
    around = [node for node in ast.walk(module) if isinstance(node, ast.stmt)
              and node.lineno <= line <= (node.end_lineno or node.lineno)]  # fmt: skip
    return min(around, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)


def _readers(functions: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    for function in functions:
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        inside = [node for statement in function.body for node in ast.walk(statement)]
        if any(isinstance(node, ast.Name) and node.id == name for node in inside):
            yield _entry(function)


def _entry(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """Its first statement; not the docstring, which would no longer be one behind a call."""
    return next((each for each in function.body if not _is_head(each)), function.body[0])


class _Marking(ast.NodeTransformer):
    """Puts a call before each statement that has keys."""

    def __init__(self, places: dict[ast.stmt, list[str]]) -> None:
        self.places = places

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, [each for statement in value for each in self._with_calls(statement)])
        return node

    def _with_calls(self, statement: ast.stmt) -> list[ast.stmt]:
        calls = [ast.parse(f"_mutant_passed({key!r})").body[0] for key in self.places.get(statement, ())]
        return [*calls, statement]
