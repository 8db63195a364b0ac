"""What an environment stands on: the system's packages and CANN, found on this machine or installed before its steps.

Stacks use the package names of Debian and Ubuntu; names that differ elsewhere are in `matrix/system_packages.toml`.
Nothing is installed without consent; without it, what is missing is reported with the command to install it.

Nothing of CANN is downloaded: its files lie behind an account and a licence. Their names as their makers give them:

    Ascend-cann-toolkit_8.5.0_linux-aarch64.run
    Ascend-cann-910b-ops_8.5.0_linux-aarch64.run          from 8.5 on; A3 too
    Ascend-cann-kernels-910b_8.3.RC1_linux-aarch64.run    before; of A3: Atlas-A3-cann-kernels_8.3.RC1_...
    Ascend-cann-nnal_8.5.0_linux-aarch64.run              as package: Ascend-cann-nnal-8.5.0-linux.aarch64.rpm

Options: CANN software installation guide, "Parameter Description" (8.5.0, 9.1.0): `--quiet` agrees to the licence.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.core.plan import Action, Condition, Run, Step, WriteFile
from npuenv.facts import machine as machine_facts
from npuenv.facts.cann.toolkit import installs
from npuenv.facts.conditions import ask, missing_packages
from npuenv.host import Host, PathState
from npuenv.install.cann import LAUNCHER, ascend_folder, cann_scripts
from npuenv.install.target import nearest
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.install.environments import EnvironmentPlace
    from npuenv.resolve.types import Stack


_ROOT, _SUDO, _NONE = "root", "sudo", "none"
# Ids of /etc/os-release. ID_LIKE is ignored, because package names of unknown systems must not be guessed.
_DEBIANS = ("ubuntu", "debian")
_RPMS = ("openeuler", "centos", "rhel", "fedora", "rocky", "almalinux", "kylin", "anolis", "hce", "euleros", "bclinux")
_LOCK_WAIT_S = 120  # another installation, often the nightly one, may hold apt's lock
PARTS = ("toolkit", "ops", "nnal")  # in install order
_CANN_FILE = re.compile(
    r"""(?P<maker>Ascend|Atlas-A3)-cann-
    (?:(?P<part>toolkit|nnal)|kernels-(?P<chip>[0-9A-Za-z]+)|(?P<newer>[0-9A-Za-z]+)-ops|(?P<bare>kernels))
    [_-](?P<version>[0-9][0-9A-Za-z.]*?(?:-(?:alpha|beta)\.?[0-9]+)?(?:_[0-9]{8,})?)
    [_-]linux(?:[-_.](?P<arch>aarch64|x86_64|x86-64))?
    \.(?P<form>run|deb|rpm)""",
    re.VERBOSE,
)
_HASH_TIMEOUT_S = 600.0
_DEFAULT_FOLDER = "/usr/local/Ascend"  # the fixed install path of packages


@dataclass(frozen=True, slots=True)
class Prerequisites:
    """Steps before the environment's own, and notes for the user about missing ones."""

    steps: tuple[Step, ...] = ()
    notes: tuple[Message, ...] = ()

    def __add__(self, other: Prerequisites) -> Prerequisites:
        return Prerequisites(self.steps + other.steps, self.notes + other.notes)


@dataclass(frozen=True, slots=True)
class PackageManager:
    """A machine's package manager, and the stack's packages that it lacks."""

    name: str  # for messages
    database: str  # dpkg | rpm; "": unknown
    installer: str  # apt-get | dnf | yum
    missing: tuple[str, ...]  # with their names on this system
    is_known: bool  # False: the database could not be read, and `missing` holds all packages
    privilege: str  # root | sudo | none


def look_at_system(host: Host, stack: Stack) -> PackageManager:
    """The stack's system packages that this machine lacks; on an unknown system all of them."""
    found = machine_facts.system(host)
    identity = found.value.id.casefold() if found.value else ""
    name = found.value.name if found.value else "Linux"
    if identity in _DEBIANS:
        database, installer, wanted = "dpkg", "apt-get", stack.system_packages
    elif identity in _RPMS:
        database, wanted = "rpm", load_matrix().dnf_names(stack.system_packages)
        installer = "dnf" if host.look("/usr/bin/dnf").state is PathState.FILE else "yum"
    else:
        return PackageManager(name, "", "", stack.system_packages, False, _NONE)
    if not wanted:
        return PackageManager(name, database, installer, (), True, _NONE)
    missing = missing_packages(host, database, wanted)
    if missing.value is None:
        return PackageManager(name, database, installer, tuple(wanted), False, _privilege_of(host))
    privilege = _privilege_of(host) if missing.value else _NONE
    return PackageManager(name, database, installer, missing.value, True, privilege)


def system_steps(stack: Stack, machine: PackageManager, *, is_allowed: bool) -> Prerequisites:
    """The step that installs missing packages, if that is allowed and possible; else a note with the command."""
    if not machine.missing:
        return Prerequisites()
    args = {"packages": machine.missing, "system": machine.name}
    if not machine.database:
        return Prerequisites(notes=(Message("plan.system-stranger", args),))
    runs = _package_runs(machine)
    if is_allowed and machine.privilege != _NONE:
        want = Condition("system.packages", (machine.database, *machine.missing), "installed")
        why = Message("plan.why-system", {**args, "stack": stack.name})
        do = tuple(_as_root(run, machine.privilege) for run in runs)
        return Prerequisites((Step("system", why, do, (want,), needs_root=True, needs_network=True),))
    key = "plan.system-administrator" if machine.privilege == _NONE else "plan.system-missing"
    key = key if machine.is_known else "plan.system-unknown"
    return Prerequisites(notes=(Message(key, {**args, "command": as_lines(runs)}),))


def _package_runs(machine: PackageManager) -> tuple[Run, ...]:
    if machine.installer == "apt-get":
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        wait = ("-o", f"DPkg::Lock::Timeout={_LOCK_WAIT_S}")
        install = ("install", "-y", "--no-install-recommends", *machine.missing)
        return (Run(("apt-get", *wait, "update")), Run(("apt-get", *wait, *install), quiet))
    weak = ("--setopt=install_weak_deps=False",) if machine.installer == "dnf" else ()
    return (Run((machine.installer, "install", "-y", *weak, *machine.missing)),)


@dataclass(frozen=True, slots=True)
class SuppliedFile:
    """A supplied file, described by its name and its hash."""

    path: str
    part: str  # toolkit | ops | nnal
    chip: str  # of ops: 910b, a3, 310p; else ""
    version: str
    arch: str  # "": not in the name
    form: str  # run | deb | rpm
    sha256: str = ""
    is_known: bool = False  # whether a source of the matrix gives this hash


def cann_steps(host: Host, stack: Stack, files: Sequence[str], target: EnvironmentPlace) -> Prerequisites:
    """Steps for the missing parts of CANN, from `files`; notes for parts without a file.

    Raises: BadInput for a file that is no part of this stack's CANN: another name, version, architecture, chip or hash.
    """
    supplied = supplied_parts(host, stack, files)
    found = Prerequisites()
    for part in PARTS if stack.cann_root else ():
        want = _part_want(stack, part)
        if ask(host, want).value == want.value:
            continue
        if part in supplied:
            found += _install_part(host, stack, supplied[part], target)
        else:
            args = {"file": expected_names(stack)[PARTS.index(part)], "root": stack.cann_root}
            found += Prerequisites(notes=(Message("plan.cann-missing", args),))
    return found


def with_found_cann(host: Host, stack: Stack) -> Stack:
    """The stack with the root of its CANN on this machine, if that is not the usual one."""
    if not stack.cann_root or ask(host, _part_want(stack, "toolkit")).value == _cann_version(stack):
        return stack
    found = installs(host, stack.platform.arch).value
    for install in found.found if found else ():
        if versions.is_cann(install.version) and versions.cann(install.version) == versions.cann(_cann_version(stack)):
            return replace(stack, cann_root=install.root)
    return stack


def supplied_parts(host: Host, stack: Stack, files: Sequence[str]) -> dict[str, SuppliedFile]:
    """Part -> file. Raises: BadInput for a file that is no part of this stack's CANN, and for two of one part."""
    if files and not stack.cann_root:
        args: dict[str, object] = {"stack": stack.name, "path": files[0]}
        raise BadInput(Message("plan.cann-not-needed", args), Message("plan.cann-not-needed-hint"))
    supplied: dict[str, SuppliedFile] = {}
    for path in files:
        args = {"path": path, "names": expected_names(stack)}
        if host.look(path).state is PathState.ABSENT:
            raise BadInput(Message("plan.cann-absent", args), Message("plan.cann-absent-hint", args))
        file = parse_cann_file(path)
        if file is None:
            raise BadInput(Message("plan.cann-name", args), Message("plan.cann-name-hint"))
        if file.part in supplied:
            raise BadInput(Message("plan.cann-twice", {"one": supplied[file.part].path, "other": path}))
        _require_fit(stack, file)
        supplied[file.part] = _hashed(host, file)
    return supplied


def parse_cann_file(path: str) -> SuppliedFile | None:
    """The parts of a CANN file's name; None for any other name."""
    match = _CANN_FILE.fullmatch(posixpath.basename(path))
    if match is None:
        return None
    chip = (match["chip"] or match["newer"] or ("A3" if match["bare"] else "")).casefold()
    if match["maker"] == "Atlas-A3" and not match["bare"]:
        return None
    arch = (match["arch"] or "").replace("-", "_")
    return SuppliedFile(path, match["part"] or "ops", chip, match["version"], arch, match["form"])


def expected_names(stack: Stack) -> tuple[str, ...]:
    """The names of the files of a stack's CANN, in the vendor's spelling; () if it needs none."""
    version = _cann_version(stack)
    if not version:
        return ()
    chip = _chip(stack)
    tail = f"_{version}_linux-{stack.platform.arch}.run"
    if versions.cann(version) >= versions.cann("8.5.0"):
        ops = f"Ascend-cann-{'A3' if chip == 'a3' else chip}-ops"
    else:
        ops = "Atlas-A3-cann-kernels" if chip == "a3" else f"Ascend-cann-kernels-{chip}"
    return (f"Ascend-cann-toolkit{tail}", f"{ops}{tail}", f"Ascend-cann-nnal{tail}")


def _require_fit(stack: Stack, file: SuppliedFile) -> None:
    wanted = {"version": _cann_version(stack), "arch": stack.platform.arch, "chip": _chip(stack)}
    args = {"path": file.path, "stack": stack.name}
    if not versions.is_cann(file.version) or versions.cann(file.version) != versions.cann(wanted["version"]):
        raise BadInput(Message("plan.cann-other", {**args, "is": file.version, "wanted": wanted["version"]}))
    if file.arch and file.arch != wanted["arch"]:
        raise BadInput(Message("plan.cann-other", {**args, "is": file.arch, "wanted": wanted["arch"]}))
    if file.chip and wanted["chip"] and file.chip != wanted["chip"]:
        raise BadInput(Message("plan.cann-other", {**args, "is": file.chip, "wanted": wanted["chip"]}))
    if file.form != "run" and ascend_folder(stack) != _DEFAULT_FOLDER:
        raise BadInput(Message("plan.cann-package-place", {**args, "wanted": ascend_folder(stack)}))


def _hashed(host: Host, file: SuppliedFile) -> SuppliedFile:
    """The file with its sha256. Raises: BadInput if it cannot be read or if the matrix has another hash."""
    looked = host.look(file.path)
    ran = host.run(("sha256sum", file.path), timeout_s=_HASH_TIMEOUT_S)
    match = re.match(r"\\?([0-9a-f]{64}) ", ran.out)
    if looked.state is not PathState.FILE or match is None:
        why = looked.error or ran.err.strip() or looked.state.value
        raise BadInput(Message("plan.cann-unreadable", {"path": file.path, "why": why}))
    rows = {row.id: row.sha256 for row in load_matrix().cann_files}
    known = rows.get(posixpath.basename(file.path), "")
    if known and known != match[1]:
        raise BadInput(Message("plan.cann-hash", {"path": file.path, "is": match[1], "wanted": known}))
    return replace(file, sha256=match[1], is_known=bool(known))


def _install_part(host: Host, stack: Stack, file: SuppliedFile, target: EnvironmentPlace) -> Prerequisites:
    folder = ascend_folder(stack)
    is_ours = file.form == "run" and host.look(nearest(host, folder)).is_writable
    privilege = "" if is_ours else _privilege_of(host)
    args = {
        "part": file.part,
        "version": _cann_version(stack),
        "file": posixpath.basename(file.path),
        "folder": folder,
        "hash": file.sha256,
    }
    runs = _installer_runs(stack, file, is_for_all=privilege == _SUDO)
    if privilege == _NONE:
        return Prerequisites(notes=(Message("plan.cann-administrator", {**args, "command": as_lines(runs)}),))
    sums, launcher = target.own(f"cann-{file.part}.sha256"), target.own("with-cann.sh")
    do: list[Action] = [WriteFile(sums, f"{file.sha256}  {file.path}\n"), Run(("sha256sum", "-c", "--quiet", sums))]
    if file.part == "nnal" and file.form == "run":
        # NNAL's installer looks for the toolkit in the variables that the toolkit's own script sets.
        cann, nnal = cann_scripts(stack)
        check, install = runs
        env = {"NPUENV_CANN": cann, "NPUENV_NNAL": nnal}
        runs = (check, Run(("sh", launcher, *install.argv), env))
        do.append(WriteFile(launcher, LAUNCHER, 0o755))
    do += [_as_root(run, privilege) for run in runs]
    why = Message("plan.why-cann" if file.is_known else "plan.why-cann-unhashed", args)
    return Prerequisites(
        (Step(f"cann-{file.part}", why, tuple(do), (_part_want(stack, file.part),), needs_root=not is_ours),)
    )


def _installer_runs(stack: Stack, file: SuppliedFile, *, is_for_all: bool) -> tuple[Run, ...]:
    """The installer's self-test, then the installation. Package managers test packages themselves."""
    if file.form == "deb":
        return (Run(("dpkg", "-i", file.path)),)
    if file.form == "rpm":
        return (Run(("rpm", "-U", file.path)),)
    options = ["--install", "--quiet", f"--install-path={ascend_folder(stack)}"]
    options += ["--install-for-all"] * is_for_all  # installed by root for other users
    return (Run(("bash", file.path, "--check")), Run(("bash", file.path, *options)))


def _part_want(stack: Stack, part: str) -> Condition:
    root, version = stack.cann_root or "", _cann_version(stack)
    if part == "toolkit":
        return Condition("cann.toolkit", (root, version), version)
    if part == "ops":
        return Condition("cann.ops", (root, version, stack.platform.arch), version)
    return Condition("cann.nnal", (ascend_folder(stack), version), version)


def _cann_version(stack: Stack) -> str:
    pin = stack.pin("cann")
    return pin.version if pin else ""


def _chip(stack: Stack) -> str:
    row = load_matrix().hardware_row(stack.platform.hardware or "")
    return row.image_chip if row else ""


def _privilege_of(host: Host) -> str:
    """How a command gets root privileges: it has them (`root`), through `sudo`, or not at all (`none`)."""
    ran = host.run(("id", "-u"))
    if ran.code == 0 and ran.out.strip() == "0":
        return _ROOT
    folders = [folder for folder in host.environ().get("PATH", "").split(":") if folder.startswith("/")]
    paths = [f"{folder}/sudo" for folder in dict.fromkeys((*folders, "/usr/bin"))]
    return _SUDO if any(host.look(path).state is PathState.FILE for path in paths) else _NONE


def _as_root(run: Run, privilege: str) -> Run:
    """The command with root privileges. sudo never asks for a password and passes no variables on."""
    if privilege != _SUDO:
        return run
    env = ("env", *(f"{name}={value}" for name, value in run.env.items())) if run.env else ()
    return replace(run, argv=("sudo", "-n", *env, *run.argv), env={})


def as_lines(actions: tuple[Action, ...]) -> str:
    """The commands of a step as root would type them."""
    lines = []
    for action in actions:
        if isinstance(action, WriteFile):
            continue
        line = shlex.join(action.argv)
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in action.env.items())
        lines.append(f"env {env} {line}" if env else line)
    return " && ".join(lines)
