"""A better word in a message costs no afternoon: few tests quote the product's sentences.

Tests assert keys, ids and arguments (`tests.support.sentences`); the sentences stand in the golden files.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.sentences import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent
ROOT = TESTS.parent
MOST = 52
WORDS = 3  # so many of a sentence in a row are a quotation
_WORD = re.compile(r"[A-Za-z][a-z']*(?![\w=./*:-])")
_CODE = re.compile(r"`[^`]*`|\{[^{}]*\}|\S*[\d_/=<>$\"\\]\S*|(?<!\S)--?\w\S*")


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Each run of WORDS words that stand beside each other, without what is code, a placeholder or a value."""
    for stretch in re.split(r"\0|[.,:;()\n]", _CODE.sub("\0", text)):
        words = [word for word in stretch.split(" ") if word]
        for at in range(len(words) - WORDS + 1):
            taken = words[at : at + WORDS]
            if all(_WORD.fullmatch(word) for word in taken) and taken[0] not in ("npuenv", "python", "pip", "ray"):
                yield tuple(taken)


def said_by_the_product() -> set[tuple[str, ...]]:
    """The runs of words of the English catalogues, and of what the trainer says, whose sentences stand in its code."""
    found: set[tuple[str, ...]] = set()
    for sentence in catalogue().values():
        found.update(runs(sentence["en"]))
    for path in (ROOT / "trainer").rglob("*.py"):
        for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            found.update(runs(text))
    return found


def texts(tree: ast.AST) -> Iterator[str]:
    """The texts of a piece of code but for docstrings; where a formatted one has a value, a placeholder stands."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            values = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
            yield "".join(map(str, values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


def asserted(function: ast.FunctionDef) -> Iterator[str]:
    """The texts in a test's assertions, in what a raised error must match, and in the table that it is run on."""
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize"):
            yield from texts(mark)
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield from texts(node.test)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield from texts(node.value)


def quoting() -> dict[str, list[str]]:
    """The test functions that quote the product, each with what it quotes."""
    said = said_by_the_product()
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                quoted = [text for text in asserted(node) if said.intersection(runs(text.replace("\\", "")))]
                if quoted:
                    found[f"{path.relative_to(ROOT)}::{node.name}"] = quoted
    return found


@pytest.mark.slow
@pytest.mark.long
def test_few_tests_quote_what_the_product_says() -> None:
    found = quoting()
    assert len(found) <= MOST, "\n".join(f"{name}: {texts}" for name, texts in found.items())
