"""Proposals from files on this machine. Nothing in them is executed, and no index is read.

From a checkout or an archive of vllm-ascend: a release's row and requirements, the lines of the policy table, the base
images of its Dockerfiles; of verl: the requirements of a release, the base images of its Dockerfiles. From the record
of a public run (`npuenv smoke-train --attest`): its row in the table of runs.
"""

from __future__ import annotations

import ast
import datetime
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from npuenv.core.documents import JsonError, load_json, read_bytes
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.index.metadata import MAX_FILE, Requires, Unreadable, requirement_lines, sdist_texts
from npuenv.maintain.lint.requirement_files import assigned_names
from npuenv.maintain.refresh.proposal import MatrixComparison, Proposal, new_row, proposals
from npuenv.maintain.refresh.release import POLICY, base_image, built_images, policy_rows, vllm_tag
from npuenv.maintain.refresh.tables import Release, built_rows, release_rows
from npuenv.matrix.rows import Built
from npuenv.matrix.rows.packages import RUN_PACKAGES, RUN_SCHEMA, PublicRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from npuenv.matrix.rows import Image
    from npuenv.matrix.tables import Matrix


_VERSION_OF_VERL = "verl/version/version"
_VERL_DOCKERFILES = "docker/ascend/Dockerfile*"
_WANTED = (
    "PKG-INFO", "requirements.txt", "setup.py", POLICY, "Dockerfile*", _VERSION_OF_VERL, _VERL_DOCKERFILES,
)  # fmt: skip
_IMAGES, _BUILT_VERL = "images.toml", "built/verl.toml"
_NAMED = re.compile(r"-v?(\d+(?:\.\d+)+(?:rc\d+|\.post\d+)?)(?:\.tar\.gz|\.tgz)?")


def propose_from_tree(
    path: Path, matrix: Matrix, on_step: Callable[[Message], None], *, tag: str = "", today: str = ""
) -> tuple[Proposal, ...]:
    """The changes that would bring the matrix level with a tree: a folder, or a .tar.gz with one top folder.

    `tag`: the release it is of, where neither its PKG-INFO nor its name says. The policy table of a release speaks of
    that release only, because a later one may correct it; that of any other tree speaks of all. `on_step` gets what was
    skipped. Raises: BadInput for anything that is neither project.
    """
    texts = _texts(path)
    try:
        version = _version(tag) or _version_of(path, texts)
        asked = MatrixComparison(matrix, on_step, today or datetime.date.today().isoformat())
        if POLICY in texts:
            return tuple(_of_vllm_ascend(texts, version, asked))
        if _VERSION_OF_VERL in texts:
            return tuple(_of_verl(texts, version, asked))
    except Unreadable as error:
        raise _refused(path, str(error)) from error
    raise BadInput(Message("refresh.unknown-tree", {"path": str(path)}), Message("refresh.unknown-tree-hint"))


def _texts(path: Path) -> dict[str, str]:
    """The files that are read, by their paths in the tree. Raises: BadInput."""
    try:
        if path.is_dir():
            found = (file for pattern in _WANTED for file in sorted(path.glob(pattern)) if file.is_file())
            return {file.relative_to(path).as_posix(): read_bytes(file, MAX_FILE).decode("utf-8") for file in found}
        with path.open("rb") as stream:
            return sdist_texts(stream, _WANTED)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except ValueError as error:  # Unreadable, or not UTF-8
        raise _refused(path, str(error)) from error


def _refused(path: Path, why: str) -> BadInput:
    return BadInput(Message("refresh.tree-unreadable", {"path": str(path), "why": why}))


def _of_vllm_ascend(texts: Mapping[str, str], version: str, asked: MatrixComparison) -> Iterator[Proposal]:
    where = f"vllm-project/vllm-ascend{f' @v{version}' if version else ''}"
    policy = policy_rows(texts[POLICY])
    release = Release(
        version=version,
        asks=Requires(requirement_lines(texts, "requirements.txt"), "requirements.txt"),
        images=built_images(texts, asked.matrix.hardware),
        vllm=vllm_tag(texts.get("Dockerfile", "")),
        policy=policy,
        released="",
        source=f"{where} Dockerfile, requirements.txt",
        policy_source=f"{where} {POLICY}",
        kind="tree",
    )
    known = {str(Version(row.version)): row for row in asked.matrix.vllm_ascend}
    for each in sorted({*known, version} - {""}, key=Version):
        read = release if each == version else None
        line = policy.get(each) if not version or (each == version and each not in known) else None
        yield from release_rows(asked, known.get(each), read, line, release)
    yield from _base_images(texts, where, asked)


def _of_verl(texts: Mapping[str, str], version: str, asked: MatrixComparison) -> Iterator[Proposal]:
    where = f"verl-project/verl{f' @v{version}' if version else ''}"
    if version:
        source = f"{where} setup.py"
        built = Built(f"built.verl.{version}", source, asked.today, "verl", version, _install_requires(texts))
        yield from built_rows(asked, _BUILT_VERL, built)
    else:
        asked.on_step(Message("refresh.no-release", {"version": texts[_VERSION_OF_VERL].strip()}))
    yield from _base_images(texts, where, asked)


def _install_requires(texts: Mapping[str, str]) -> tuple[str, ...]:
    """The list `install_requires` of a setup.py. Raises: Unreadable if it is not a list of texts."""
    try:
        found = ast.literal_eval(assigned_names(ast.parse(texts.get("setup.py", "")))["install_requires"])
        return requirement_lines({"setup.py": "\n".join(found)}, "setup.py")
    except (KeyError, SyntaxError, TypeError, ValueError) as error:
        raise Unreadable("setup.py: install_requires") from error


def _base_images(texts: Mapping[str, str], where: str, asked: MatrixComparison) -> Iterator[Proposal]:
    """Base images that no row has: new rows, and rows that get one more chip or operating system."""
    chips = {row.image_chip: row.id for row in asked.matrix.hardware if row.image_chip}
    found: dict[tuple[str, str, str, str], Image] = {}
    for name in sorted(texts):
        image = base_image(texts[name], chips) if "Dockerfile" in name else None
        if image is None:
            continue
        key = (image.repository, image.tag, image.python, image.suffix)
        row = found.get(key) or replace(image, source=f"{where} {name}", seen=asked.today)
        found[key] = _joined(row, image)
    known = {(row.repository, row.tag, row.python, row.suffix): row for row in asked.matrix.images}
    for key, image in found.items():
        old = known.get(key)
        yield from proposals(_IMAGES, old, _joined(old, image) if old else image, image.source)


def _joined(row: Image, image: Image) -> Image:
    """A row with the chips and operating systems of another one."""
    hardware, os = dict.fromkeys((*row.hardware, *image.hardware)), dict.fromkeys((*row.os, *image.os))
    return replace(row, hardware=tuple(hardware), os=tuple(os))


def _version_of(path: Path, texts: Mapping[str, str]) -> str:
    """The release that a tree is of; "" for a development version, or where nothing says."""
    stated = re.search(r"^Version: (\S+)", texts.get("PKG-INFO", ""), re.MULTILINE)
    named = _NAMED.search(path.name)
    candidates = (stated[1] if stated else "", named[1] if named else "", texts.get(_VERSION_OF_VERL, ""))
    return next(filter(None, map(_version, candidates)), "")


def _version(text: str) -> str:
    try:
        version = Version(text.strip().removeprefix("v"))
    except InvalidVersion:
        return ""
    return "" if version.is_devrelease or version.local else str(version)


_RUNS = "runs.toml"
_LONGEST_OF_RUN = 300  # letters of one value
_VERSION_OF_RUN = r"[0-9A-Za-z][0-9A-Za-z.+!-]*"
_RUN_PATTERNS = {
    "chip": r"[0-9A-Za-z_]+",
    "cann": _VERSION_OF_RUN,
    "driver": f"({_VERSION_OF_RUN})?",
    "date": r"20\d\d-[01]\d-[0-3]\d",
    "what": r"[^\n]+",
    "failed": r"[^\n]*",
}


def run_proposal(path: Path, source: str, seen: str, matrix: Matrix) -> Proposal:
    """The proposed row for the record in a file. `source`: the address where it is public; `seen`: YYYY-MM-DD.

    Raises BadInput for a file that is no such record, an address that is none, a chip that no row names, and an address
    that the table already has.
    """
    record = _run_record(path)
    address = urlsplit(source)
    if not _fits(source, r"https?://[!-~]+") or not address.hostname:
        raise BadInput(Message("matrix.run-address", {"source": source}), Message("matrix.run-address-hint"))
    if any(run.source == source for run in matrix.runs):
        raise BadInput(Message("matrix.run-known", {"source": source}))
    hardware = matrix.hardware_of_chip(record["chip"])
    if hardware is None:
        raise BadInput(Message("matrix.run-chip", {"chip": record["chip"], "path": str(path)}))
    ending = re.sub(r"[^a-z0-9]+", "-", f"{address.hostname}{address.path}".lower()).strip("-")
    values = {name: record[name] for name in (*_RUN_PATTERNS, "cards")}
    packages = {name: record["packages"][name] for name in (*RUN_PACKAGES, "python") if name in record["packages"]}
    row = PublicRun(f"run.{ending}", source, seen, hardware=hardware.id, packages=packages, **values)
    return new_row(_RUNS, row)


def _run_record(path: Path) -> dict[str, Any]:
    """The record in a file. Raises BadInput for anything that `smoke-train` would not have written."""
    try:
        found = load_json(path)
    except (OSError, JsonError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadInput(Message("matrix.run-unreadable", {"path": str(path), "why": reason})) from error
    if not isinstance(found, dict) or found.get("schema") != RUN_SCHEMA:
        raise BadInput(Message("matrix.run-unreadable", {"path": str(path), "why": f"schema is not {RUN_SCHEMA}"}))
    wrong = [name for name, pattern in _RUN_PATTERNS.items() if not _fits(found.get(name), pattern)]
    cards, packages = found.get("cards"), found.get("packages")
    wrong += ["cards"] if type(cards) is not int or not 0 < cards <= 100_000 else []
    is_good = isinstance(packages, dict) and all(_fits(each, _VERSION_OF_RUN) for each in packages.values())
    wrong += [] if is_good else ["packages"]
    if wrong:
        raise BadInput(Message("matrix.run-unreadable", {"path": str(path), "why": ", ".join(wrong)}))
    return found


def _fits(value: object, pattern: str) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_OF_RUN and re.fullmatch(pattern, value) is not None
