"""What Ray left or keeps on this machine: its folder, the address of the cluster, the token.

The token itself is never read: its name in a folder is enough.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Collector, FactGroup, fact, made_of, not_asked
from npuenv.facts.machine.hardware import FolderUsage, folder, mounts
from npuenv.host.base import Host, PathState

if TYPE_CHECKING:
    from npuenv.facts.ray.status import ClusterStatus, StatusTrouble


_STATUS_SHORT_S = 4.0
_STATUS_S = 45.0  # with nobody there Ray needs 35 s to say so (2.55.0)
_ADDRESS = r"(?:\[[0-9A-Fa-f:]+\]|[\w.-]+):[0-9]{1,5}"
_SESSION = r"session_[0-9]{4}-[0-9]{2}-[0-9]{2}_.*"


class RaySession(NamedTuple):
    """Ray's folder of temporary files."""

    folder: str
    is_writable: bool
    sessions: int  # folders of clusters that ran or run
    address: str | None  # of the cluster that ran last, as Ray noted it; None: none noted
    is_note_writable: bool  # the note belongs to this session's user, or there is none


def folder_of(host: Host) -> str:
    """Where Ray keeps its files: RAY_TMPDIR, else TMPDIR, else /tmp, with `ray` below."""
    environ = host.environ()
    return f"{(environ.get('RAY_TMPDIR') or environ.get('TMPDIR') or '/tmp').rstrip('/')}/ray"


def session(host: Host) -> Fact[RaySession]:
    """Ray's folder; absent where Ray was never started."""
    folder = folder_of(host)
    looked = host.look(folder)
    if looked.state is PathState.ABSENT:
        return absent(Evidence(folder, "absent"))
    if looked.state is PathState.UNREADABLE and "denied" in looked.error:
        return known(RaySession(folder, False, 0, None, False), Evidence(folder, looked.error))
    if looked.state is not PathState.FOLDER:
        return unknown(Evidence(folder, looked.error or looked.state.value))
    note = host.look(f"{folder}/ray_current_cluster")
    address = note.text.strip() if re.fullmatch(_ADDRESS, note.text.strip()) else None
    is_mine = note.state is PathState.ABSENT or note.is_writable
    sessions = sum(1 for name in looked.names if re.fullmatch(_SESSION, name))
    value = RaySession(folder, looked.is_writable, sessions, address, is_mine)
    access = "writable" if looked.is_writable else "not writable"
    evidence = [Evidence(folder, f"{access}, {value.sessions} sessions")]
    if note.state is not PathState.ABSENT:
        words = note.error or address or "no address"
        evidence.append(Evidence(note.path, words if is_mine else f"{words} (not writable)"))
    return known(value, *evidence)


def address(host: Host) -> Fact[str]:
    """The address that Ray would join without being told one: RAY_ADDRESS, else the noted cluster; absent: none."""
    named = host.environ().get("RAY_ADDRESS", "").strip()
    if re.fullmatch(_ADDRESS, named):
        return known(named, Evidence("environment", f"RAY_ADDRESS={named}"))
    note = host.look(f"{folder_of(host)}/ray_current_cluster")
    if note.state is PathState.FILE and re.fullmatch(_ADDRESS, note.text.strip()):
        return known(note.text.strip(), Evidence(note.path, note.text.strip()))
    if note.state is PathState.UNREADABLE:
        return unknown(Evidence(note.path, note.error))
    return absent(Evidence(note.path, note.state.value if note.state is PathState.ABSENT else "no address"))


def token(host: Host) -> Fact[str]:
    """The path of Ray's token file; absent where there is none. Its content is left alone."""
    named = host.environ().get("RAY_AUTH_TOKEN_PATH")
    path = named or f"{host.environ().get('HOME') or '/root'}/.ray/auth_token"
    folder, _, name = path.rpartition("/")
    looked = host.look(folder or "/")
    if looked.state is PathState.FOLDER:
        return known(path, Evidence(path, "present")) if name in looked.names else absent(Evidence(path, "absent"))
    if looked.state is PathState.ABSENT:
        return absent(Evidence(path, "absent"))
    return unknown(Evidence(folder, looked.error or looked.state.value))


def _status(host: Collector, address: Fact[str]) -> Fact[ClusterStatus | StatusTrouble]:
    """A cluster that is there answers in two or three seconds; for one that is not, level 1 does not wait."""
    if address.value is None:
        return Fact(address.state, None, address.evidence)
    from npuenv.facts.ray.status import StatusRefusal, StatusTrouble, status  # most machines have no cluster to ask

    limit = host.timeout(_STATUS_SHORT_S, _STATUS_S)
    beside = f"{host.python.rpartition('/')[0]}/ray" if "/" in host.python else "ray"
    found = host.read(status, beside, limit)
    if found.state is State.ABSENT and beside != "ray":
        found = status(host, "ray", limit)
    is_late = isinstance(found.value, StatusTrouble) and found.value.kind is StatusRefusal.TIMEOUT
    return not_asked(USE_LEVEL) if is_late and host.level < USE_LEVEL else found


class RayFacts(FactGroup):
    session: Fact[RaySession] = fact(session)
    session_disk: Fact[FolderUsage] = fact(
        lambda host, session: made_of(session, lambda value: folder(host, value.folder, mounts(host).value or ())),
        "ray.session",
    )  # the file system of Ray's own folder
    address: Fact[str] = fact(address)
    token: Fact[str] = fact(token)  # the path of the token file
    status: Fact[ClusterStatus | StatusTrouble] = fact(_status, "ray.address", level=1)


__all__ = ["RayFacts"]
