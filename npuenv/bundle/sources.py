"""What a bundle takes from elsewhere than an index: components built on the target, and files the user must supply.

A component comes as an archive from its repository, else as the index's sdist: `find_source` finds the location and the
present commit, `pack_source` makes the archive. The same commit gives the same bytes.
"""

from __future__ import annotations

import lzma
import re
import shutil
import struct
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.bundle.fetch import ReleaseFile, list_files
from npuenv.bundle.layout import Needed, SourceRow, is_inside, write_tar
from npuenv.core.errors import BadInput, CannotTell, NothingFits, StepFailed
from npuenv.core.messages import Message
from npuenv.facts.pip import for_uv, without_secrets
from npuenv.install.prerequisites import PARTS, expected_names, parse_cann_file, supplied_parts
from npuenv.install.target import ARCHIVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npuenv.host import Host, Ran
    from npuenv.lock.uv import Resolver
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import GitSource, Platform, Stack


_ASK_TIMEOUT_S, _CLONE_TIMEOUT_S = 30.0, 3600.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class SourceOrigin:
    """The origin of one source: `offer`, `given` or a commit; none of them for one that is left out."""

    source: GitSource
    origin: str  # git | sdist | given | left-out
    commit: str = ""  # 40 digits
    offer: ReleaseFile | None = None
    given: str = ""  # the user's archive or folder
    why: str = ""  # the repository's error, if the index is used instead

    @property
    def path(self) -> str:
        """Its path in the bundle; "" if it is not included."""
        name = canonicalize_name(self.source.name)
        if self.origin == "left-out":
            return ""
        if self.offer is not None:
            return f"sources/{self.offer.file}"
        end = next((end for end in ARCHIVES if self.given.endswith(end) and not Path(self.given).is_dir()), ".tar")
        return f"sources/{name}{end}"

    @property
    def row(self) -> SourceRow:
        source = self.source
        return SourceRow(
            str(canonicalize_name(source.name)), self.path, self.origin, source.repo, source.ref, self.commit,
            source.is_moving, source.how,
        )  # fmt: skip


def find_sources(
    stack: Stack, resolver: Resolver, *, given: Mapping[str, str], left_out: frozenset[str]
) -> tuple[SourceOrigin, ...]:
    """The origin of each of a stack's sources. Raises: CannotTell with all that cannot be found, together."""

    def sought(source: GitSource) -> SourceOrigin | CannotTell:
        try:
            return find_source(source, stack.platform, resolver, given=given, left_out=left_out)
        except CannotTell as error:
            return error

    results = [sought(source) for source in stack.git_sources]
    lacking = [each for each in results if isinstance(each, CannotTell)]
    if len(lacking) == 1:
        raise lacking[0]
    if lacking:
        rows = tuple(Message("bundle.no-source-row", error.message.args) for error in lacking)
        options = " ".join(f"--without-source {error.message.args['name']}" for error in lacking)
        hint = Message("bundle.no-sources-hint", {"options": options})
        raise CannotTell(Message("bundle.no-sources", {"sources": rows}), hint)
    return tuple(each for each in results if isinstance(each, SourceOrigin))


def find_source(
    source: GitSource, platform: Platform, resolver: Resolver, *, given: Mapping[str, str], left_out: frozenset[str]
) -> SourceOrigin:
    """The origin of a source: the user's copy, its repository, or the sdist of its tag's version.

    Raises: CannotTell if neither responds.
    """
    name = str(canonicalize_name(source.name))
    if name in left_out:
        return SourceOrigin(source, "left-out")
    if name in given:
        return SourceOrigin(source, "given", given=given[name], commit=_commit_of_folder(given[name], resolver))
    ran = _git(resolver, ("ls-remote", source.repo), _ASK_TIMEOUT_S)
    if ran.code == 0:
        return SourceOrigin(source, "git", commit=_commit_of_ref(ran.out, source))
    why = without_secrets((ran.err.strip().splitlines() or [""])[0][:200])
    offer = None if source.is_moving else _sdist(name, source.ref, platform, resolver)
    if offer is not None:
        return SourceOrigin(source, "sdist", offer=offer, why=why)
    args = {"name": source.name, "repo": source.repo, "ref": source.ref, "why": why}
    raise CannotTell(Message("bundle.no-source", args), Message("bundle.no-source-hint", args))


def pack_source(found: SourceOrigin, out: Path, scratch: Path, resolver: Resolver) -> None:
    """Writes the archive of a source that is no sdist. Raises: StepFailed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    name = canonicalize_name(found.source.name)
    if found.origin == "given" and Path(found.given).is_file():
        shutil.copyfile(found.given, out)
    elif found.origin == "given":
        write_tar(Path(found.given), out, top=str(name), skip=frozenset({".git", "__pycache__"}))
    else:
        folder = scratch / str(name)
        _check_out(found, folder, resolver)
        write_tar(folder, out, top=str(name), skip=frozenset({".git"}))
        shutil.rmtree(folder)


def _check_out(found: SourceOrigin, folder: Path, resolver: Resolver) -> None:
    """The tree of the commit with its submodules, and the file from which setuptools-scm reads the version without
    history.
    """
    source = found.source
    shutil.rmtree(folder, ignore_errors=True)
    plain = ("-c", "core.autocrlf=false", "-c", "core.symlinks=true", "-c", "advice.detachedHead=false")
    inside = ("-C", str(folder), *plain)
    for argv in (
        (*plain, "clone", "--quiet", "--filter=blob:none", "--no-checkout", source.repo, str(folder)),
        (*inside, "checkout", "--quiet", "--detach", found.commit),
        (*inside, "submodule", "--quiet", "update", "--init", "--recursive"),
    ):
        ran = _git(resolver, argv, _CLONE_TIMEOUT_S)
        if ran.code != 0:
            lines = ran.err.strip().splitlines() or [""]
            args = {"name": source.name, "repo": source.repo, "why": without_secrets(lines[-1][:300])}
            raise StepFailed(Message("bundle.git-failed", args), Message("bundle.again"))
    described = _git(resolver, (*inside, "describe", "--tags", "--long", "--match", "*[0-9]*"), _ASK_TIMEOUT_S)
    note = folder / ".git_archival.txt"
    if described.code == 0 and (not note.exists() or "$Format" in note.read_text(encoding="utf-8", errors="replace")):
        note.write_text(f"node: {found.commit}\ndescribe-name: {described.out.strip()}\n", encoding="utf-8")


def _commit_of_ref(text: str, source: GitSource) -> str:
    """The commit of a tag, branch or commit in the output of `git ls-remote`; an annotated tag is dereferenced.

    A real line: `2a3b...e9<tab>refs/tags/v0.13.0^{}`. Raises: NothingFits if the repository has no such ref, or the tag
    is not at the commit that was recorded for it.
    """
    if _COMMIT.fullmatch(source.ref):
        return source.ref
    rows: dict[str, str] = {}
    for line in text.splitlines():
        commit, _, name = line.partition("\t")
        rows[name] = commit
    details = {"name": source.name, "repo": source.repo, "ref": source.ref}
    hint = Message("bundle.no-source-hint", details)
    kinds = ("refs/heads", "refs/tags") if source.is_moving else ("refs/tags", "refs/heads")
    for kind in kinds:
        for name in (f"{kind}/{source.ref}^{{}}", f"{kind}/{source.ref}"):
            commit = rows.get(name, "")
            if _COMMIT.fullmatch(commit) and not commit.startswith(source.commit):
                args = {**details, "recorded": source.commit, "found": commit}
                raise NothingFits(Message("bundle.tag-moved", args), hint)
            if _COMMIT.fullmatch(commit):
                return commit
    raise NothingFits(Message("bundle.no-ref", details), hint)


def _commit_of_folder(path: str, resolver: Resolver) -> str:
    """The commit of a supplied checkout; "" for an archive, a folder without history, or a modified one."""
    if not (Path(path) / ".git").exists():
        return ""
    head = _git(resolver, ("-C", path, "rev-parse", "HEAD"), _ASK_TIMEOUT_S)
    edited = _git(resolver, ("-C", path, "status", "--porcelain"), _ASK_TIMEOUT_S)
    is_clean = head.code == 0 and edited.code == 0 and not edited.out.strip()
    return head.out.strip() if is_clean else ""


def _sdist(name: str, ref: str, platform: Platform, resolver: Resolver) -> ReleaseFile | None:
    """The sdist on the index for the version of a tag like v0.13.0; None if there is none."""
    if not re.fullmatch(r"v?\d+(\.\d+)+\S*", ref):
        return None
    try:
        listed = list_files([f"{name}=={ref.removeprefix('v')}"], platform, resolver)
    except (CannotTell, NothingFits):
        return None
    offers = (offer for row in listed if row.name == name for offer in row.offers)
    return next((offer for offer in offers if not offer.is_wheel), None)


def _git(resolver: Resolver, argv: tuple[str, ...], timeout_s: float) -> Ran:
    """Runs git without password prompts, with pip's proxy and certificates."""
    settings = for_uv(resolver.settings)
    env = {name: value for name, value in settings.environ.items() if "proxy" in name.lower()}
    if resolver.settings.cert:
        env["GIT_SSL_CAINFO"] = resolver.settings.cert.value
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    return resolver.host.run(("git", *argv), timeout_s=timeout_s, env=env)


def check_sources(
    stack: Stack, given: Mapping[str, str], left_out: Iterable[str]
) -> tuple[dict[str, str], frozenset[str]]:
    """The user's archives and left-out sources under normalised names.

    Raises: BadInput for a source that the stack does not build, one that is both, and a path that is no archive or
    folder.
    """
    known = {str(canonicalize_name(source.name)) for source in stack.git_sources}
    absent = frozenset(str(canonicalize_name(name)) for name in left_out)
    sources = {str(canonicalize_name(name)): path for name, path in given.items()}
    for name in (*sources, *absent):
        if name not in known:
            args = {"name": name, "stack": stack.name, "known": tuple(sorted(known)) or "-"}
            raise BadInput(Message("bundle.unknown-source", args))
    for name, path in sources.items():
        if name in absent:
            raise BadInput(Message("bundle.source-twice", {"name": name}))
        if not (Path(path).is_dir() or (Path(path).is_file() and path.endswith(ARCHIVES))):
            raise BadInput(Message("bundle.no-archive", {"name": name, "path": path, "kinds": ARCHIVES}))
    return sources, absent


MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # e_machine of ELF, by what `uname -m` says
_MOST_BYTES = 4 << 30  # of an unpacked Python; one with every test and symbol has 0.5 GiB
_PYTHON = re.compile(r"(?:.*/)?bin/python(3\.\d+)")


def find_needed(
    stack: Stack, matrix: Matrix, *, cann_files: Sequence[Path], has_python: bool, left_out: Sequence[str]
) -> tuple[Needed, ...]:
    """What the user must have on the target or supply, with sizes if a public source states them.

    `has_python`: the bundle contains an interpreter; `left_out`: sources that it does not contain.
    """
    sizes = {row.id: row.size for row in matrix.cann_files}
    given = {file.part for path in cann_files if (file := parse_cann_file(path.name))}
    names = zip(PARTS, expected_names(stack))
    found = [Needed("cann", name, sizes.get(name, 0)) for part, name in names if part not in given]
    system = matrix.system_row(stack.platform.os or "")
    if not has_python and (system is None or system.python != stack.platform.python):
        ships = system.python if system else ""
        found.append(Needed("python", f"Python {stack.platform.python} ({stack.platform.arch})", detail=ships))
    found += [Needed("system", name) for name in stack.system_packages]
    refs = {source.name: f"{source.repo} {source.ref}" for source in stack.git_sources}
    return (*found, *(Needed("source", name, detail=refs.get(name, "")) for name in left_out))


def check_cann_files(host: Host, paths: Sequence[Path], stack: Stack) -> None:
    """Raises BadInput for a supplied file that an installation of the stack on the target would refuse."""
    for path in paths:
        _require_file(path)
    supplied_parts(host, stack, tuple(map(str, paths)))


def check_python_archive(path: Path, platform: Platform) -> None:
    """Raises BadInput for an archive without the stack's Python in some `bin` folder, or with one for another machine.

    Such archives hold a complete, relocatable installation.
    """
    _require_file(path)
    args = {"path": str(path), "python": platform.python, "arch": platform.arch}
    found: dict[str, str] = {}  # version -> machine; "" for a link
    try:
        with tarfile.open(path) as archive:
            size = 0
            for member in archive:  # a few MB may unpack to terabytes
                size += member.size + tarfile.BLOCKSIZE
                if size > _MOST_BYTES:
                    raise tarfile.TarError(f"> {_MOST_BYTES >> 30} GiB")
                match = _PYTHON.fullmatch(member.name)
                if match:
                    found[match[1]] = found.get(match[1]) or _machine_of(archive, member)
    except tarfile.ReadError as error:  # its message lists every compression that was tried
        raise BadInput(Message("bundle.no-tar", args)) from error
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadInput(Message("bundle.bad-python-archive", {**args, "why": str(error)[:200]})) from error
    if platform.python not in found:
        raise BadInput(Message("bundle.no-python-inside", {**args, "found": tuple(sorted(found)) or "-"}))
    if found[platform.python] not in ("", platform.arch):
        raise BadInput(Message("bundle.python-of-other-arch", {**args, "found": found[platform.python]}))


def _machine_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """The machine of an ELF program; "" for a link, "?" for another file or an unknown machine."""
    if not member.isreg():
        return ""
    content = archive.extractfile(member)
    head = content.read(20) if content else b""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return "?"
    return MACHINES.get(struct.unpack("<H", head[18:20])[0], "?")


def _require_file(path: Path) -> None:
    if not path.is_file() or path.stat().st_size == 0:
        raise BadInput(Message("bundle.no-file", {"path": str(path)}))
    if not is_inside(path.name):
        raise BadInput(Message("bundle.odd-name", {"path": str(path)}))
