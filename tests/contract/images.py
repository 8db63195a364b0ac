"""What the table of published Dockerfiles says of vllm-ascend's, beside the files themselves.

    python -m tests.contract.images CHECKOUT [--write]

CHECKOUT is a clone of vllm-project/vllm-ascend with its tags. Read are the system packages, the variables that the file
exports for later shells, what pip installs by name or as a file, and the extras of what it builds. Prints each row that
says otherwise and exits with 1; with --write the table says what the files do.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core import documents as _toml
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix.rows import Upstream

TABLE = Path(load_matrix().folder, "upstream.toml")
REPOSITORY = "vllm-project/vllm-ascend"
_SYSTEM = re.compile(r"\b(?:apt-get|yum|dnf)(?: -y)? install((?: +[\w.+-]+)+)")
_EXPORT = re.compile(r'echo "export (\w+)=([^"]*)"')
_PIP = re.compile(r"\bpip install ([^&;\n]*)")
_NAMED = re.compile(r"([A-Za-z][\w.-]*)((?:[<>=!~][^\s,]*,?)*)")
_WHEEL = re.compile(r"(torch_npu|triton_ascend)-(\d[\w.]*(?:%2B\w+)?)-")
_EXTRAS = re.compile(r"/vllm-workspace/([\w-]+)/?\[([\w,]+)\]")
_WITH_VALUE = ("--extra-index", "--extra-index-url", "--index-url", "-i")


class Said(NamedTuple):
    """What a Dockerfile says of the columns that are compared; packages are those that the row must have."""

    system: tuple[str, ...]
    env: dict[str, str]
    packages: dict[str, str]


def read(text: str, *, python: str) -> Said:
    """A Dockerfile's system packages, exported variables and packages; wheels for aarch64 and this Python."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    system = [word for found in _SYSTEM.findall(text) for word in found.split() if not word.startswith("-")]
    env = {name: _change(name, value) for name, value in _EXPORT.findall(text)}
    packages: dict[str, str] = {}
    for words in map(str.split, _PIP.findall(text.replace('"', "").replace("'", ""))):
        packages.update(_of_pip(words))
    for name, extras in _EXTRAS.findall(text):
        packages[f"{name}[{extras}]"] = ""
    packages.update(_wheels(text, python))
    return Said(tuple(dict.fromkeys(system)), env, packages)


def _change(name: str, value: str) -> str:
    """Example: "libjemalloc.so.2 prepended" for `/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2:$LD_PRELOAD`."""
    parts = value.split(":")
    added = " ".join(part.rpartition("/")[2] if name == "LD_PRELOAD" else part for part in parts if f"${name}" != part)
    return f"{added} {'appended' if parts[0] == f'${name}' else 'prepended'}" if f"${name}" in parts else added


def _of_pip(words: list[str]) -> Iterator[tuple[str, str]]:
    """Names with what the call asks of them; folders, files and options are none."""
    skips = False
    for word in words:
        found = _NAMED.fullmatch(word)
        if found and not skips and "$" not in word:
            yield found[1].lower(), found[2]
        skips = word in _WITH_VALUE


def _wheels(text: str, python: str) -> dict[str, str]:
    """Single files put in last, by name: those of aarch64 where there is one for each architecture."""
    tag = f"cp{python.replace('.', '')}"
    lines = [line for line in text.split(";") if "_WHEEL=" in line]
    fit = [line for line in lines if '"$PYTHON_TAG" =' not in line or (f'"{tag}"' in line and '"aarch64"' in line)]
    found = (match for line in fit for match in _WHEEL.finditer(line))
    return {each[1].replace("_", "-"): f"=={each[2].replace('%2B', '+')}" for each in found}


def rows() -> tuple[Upstream, ...]:
    return tuple(row for row in load_matrix().upstream if row.source.startswith(f"{REPOSITORY} "))


def said_by(checkout: Path, row: Upstream) -> Said:
    """What the row's file says. Raises CalledProcessError where the checkout does not have it."""
    _, file, ref = row.source.split()
    argv = ("git", "-C", str(checkout), "show", f"{ref.removeprefix('@')}:{file}")
    text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return read(text, python=row.python)


def differences(row: Upstream, said: Said) -> Iterator[str]:
    """The columns that say otherwise, as lines of TOML that would be right."""
    if row.system_packages != said.system:
        yield f"system_packages = {_list(said.system)}"
    env = {**row.env, **said.env}
    if row.env != env:
        yield f"env = {_table(env)}"
    packages = {**row.packages, **said.packages}
    if row.packages != packages:
        yield f"packages = {_table(packages)}"


def _list(words: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _table(pairs: dict[str, str]) -> str:
    return "{ " + ", ".join(f'"{name}" = "{value}"' for name, value in pairs.items()) + " }"


def written(text: str, wanted: dict[str, list[str]]) -> str:
    """The table's text with these lines (by row) in place of those of the same columns."""
    blocks = text.split("[[row]]\n")
    for number, block in enumerate(blocks):
        found = re.match(r'id = "([^"]+)"', block)
        for line in wanted.get(found[1], ()) if found else ():
            column = line.partition("=")[0] + "="
            olds = blocks[number].split("\n")
            blocks[number] = "\n".join(line if old.startswith(column) else old for old in olds)
    result = "[[row]]\n".join(blocks)
    _toml.parse_toml(result)
    return result


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    checkout = Path(sys.argv[1])
    wanted = {row.id: list(differences(row, said_by(checkout, row))) for row in rows()}
    if "--write" in sys.argv[2:]:
        TABLE.write_text(written(TABLE.read_text(encoding="utf-8"), wanted), encoding="utf-8")
        return 0
    for name, lines in wanted.items():
        print("".join(f"{name}: {line}\n" for line in lines), end="")
    print(f"{sum(map(bool, wanted.values()))} of {len(wanted)} rows say otherwise")
    return int(any(wanted.values()))


if __name__ == "__main__":
    sys.exit(main())
