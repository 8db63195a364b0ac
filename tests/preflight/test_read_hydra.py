"""Words of a Hydra command line: values by its grammar, what it refuses, and the same verdict as Hydra's own parser."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.preflight.hydra import NotHydra, read_override, read_value, write_value

if TYPE_CHECKING:
    from pathlib import Path

VALUES = [
    ("", ""),
    ("1", 1),
    ("-1", -1),
    ("+5", 5),
    ("1_000", 1000),
    ("012", "012"),
    ("5e-7", 5e-7),
    (".5", 0.5),
    ("1.", 1.0),
    ("True", True),
    ("tRue", True),
    ("yes", "yes"),
    ("null", None),
    ("None", "None"),
    ("/a/b.c", "/a/b.c"),
    ("http://x:80/y", "http://x:80/y"),
    ("x y", "x y"),
    (" 1 ", 1),
    ("'x y'", "x y"),
    ('"it\'s"', "it's"),
    (r"'it\'s'", "it's"),
    (r"'a\\'", "a\\"),
    (r"x\,y", "x,y"),
    (r"x\=y", "x=y"),
    ("${b.c}", "${b.c}"),
    ("${x}y", "${x}y"),
    ("[]", []),
    ("{}", {}),
    ("[1,[2,x y]]", [1, [2, "x y"]]),
    ("[ 'x' , y z ]", ["x", "y z"]),
    ("[\"/a/b.parquet\",'/c']", ["/a/b.parquet", "/c"]),
    ("{b:1,c:[x,y]}", {"b": 1, "c": ["x", "y"]}),
    ("{a b:1}", {"a b": 1}),
    ("*", "*"),
    ("--x", "--x"),
]
REFUSED = [
    ("a=b=c", "character"),
    ("a=1,2", "sweep"),
    ("a=range(0,4)", "sweep"),
    ("a=choice(1,2)", "sweep"),
    ("a=list(range(0,4))", "shape"),
    ("a=~/data", "character"),
    ("a=a#b", "character"),
    ("a=x;y", "character"),
    ("a=(x)", "character"),
    ("a=日本", "character"),
    ('a=a"b', "character"),
    ("a=[1,]", "shape"),
    ("a=[,]", "shape"),
    ("a={", "shape"),
    ("a=[", "shape"),
    ("a='x", "shape"),
    ("a='x'y", "character"),
    ("a={'k':1}", "character"),
    ("a=${x", "shape"),
    ("a.b[0]=1", "character"),
    ("a", "no-value"),
    ("+a", "no-value"),
    ("=1", "shape"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_a_value_is_what_hydra_makes_of_it(text: str, value: Any) -> None:
    found = read_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("word", "why"), REFUSED)
def test_a_word_that_hydra_refuses_is_refused_with_the_reason(word: str, why: str) -> None:
    with pytest.raises(NotHydra) as caught:
        read_override(word)
    assert caught.value.why == why


def test_the_sign_in_the_place_of_a_value_is_named() -> None:
    with pytest.raises(NotHydra) as caught:
        read_override("a=[b,,c]")
    assert caught.value.what == ","


@pytest.mark.parametrize(
    ("word", "mark", "key", "value"),
    [
        ("a.b=1", "", "a.b", 1),
        ("+a.b=x", "+", "a.b", "x"),
        ("++a.b=null", "++", "a.b", None),
        ("~a.b", "~", "a.b", None),
        ("a@b.c=d", "", "a@b.c", "d"),
        ("group/x=y", "", "group/x", "y"),
    ],
)
def test_marks_are_kept_apart_from_keys(word: str, mark: str, key: str, value: Any) -> None:
    found = read_override(word)
    assert (found.mark, found.key, found.value) == (mark, key, value)


def test_a_cast_stays_text_because_hydra_computes_it() -> None:
    found = read_override("a=int(3.4)")
    assert (found.value, found.is_computed) == ("int(3.4)", True)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 1e-6, "a", "a b", "", "1", "null", "true", "it's", "a,b", "[x]", "~/d", "a\\", "\\'", "日本",
        "a:b", ["a", None, 1.5, "x,y", "b:c"], {"k": [1, "2"]}, "list(range(0,4))", "${a.b}", " lead", "a=b", "a#b",
        "'", "\\\\'",
    ],
)  # fmt: skip
def test_what_is_written_reads_back_as_the_same_value(value: Any) -> None:
    found = read_value(write_value(value))
    assert (found, type(found)) == (value, type(value))


REAL = """
import json, sys
from hydra.core.override_parser.overrides_parser import OverridesParser
parser, marks, found = OverridesParser.create(), {"CHANGE": "", "ADD": "+", "FORCE_ADD": "++", "DEL": "~"}, {}
for word in json.load(sys.stdin):
    try:
        one = parser.parse_override(word)
        key = one.get_key_element().lstrip("+~")
        found[word] = None if one.is_sweep_override() else [marks[one.type.name], key, repr(one.value())]
    except Exception:
        found[word] = None
print(json.dumps(found))
"""


@pytest.mark.registry
@pytest.mark.long
def test_hydra_itself_reads_every_word_the_same_way(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", str(tmp_path / "venv")], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), "hydra-core==1.3.*"], check=True)
    words = [f"a={text}" for text, _ in VALUES] + [word for word, _ in REFUSED if word != "=1"]  # Hydra takes no key
    words += ["+a=1", "++a.b=x", "~a", "~a=1", "a@b.c=d", "group/x=y", "a.0=1", "a= [1] ", "a=1 2", "a=x:", "a=:x"]
    words += [f"a={write_value(value)}" for value in ("a b", "1", "it's", "~/d", "a\\", "\\'", "日本", ["x,y", "b:c"])]
    real = subprocess.run(
        [str(python), "-c", REAL], input=json.dumps(words), capture_output=True, text=True, check=True
    )
    assert {word: _mine(word) for word in words} == json.loads(real.stdout)


def _mine(word: str) -> list[str] | None:
    try:
        found = read_override(word)
    except NotHydra:
        return None
    return [found.mark, found.key, repr(found.value)]
