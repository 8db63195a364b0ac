"""Ray on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Fact, State
from npuenv.facts.collector import USE_LEVEL, not_asked
from npuenv.facts.machine.mounts import folder, mounts
from npuenv.facts.ray import session

if TYPE_CHECKING:
    from npuenv.facts.collector import Asker
    from npuenv.facts.machine.mounts import Folder
    from npuenv.facts.python import PythonFacts
    from npuenv.facts.ray.session import Session
    from npuenv.facts.ray.status import Status, Trouble

_STATUS_SHORT_S = 4.0
_STATUS_S = 45.0  # with nobody there Ray needs 35 s to say so (2.55.0)


@dataclass(frozen=True, slots=True)
class RayFacts:
    """What is true of Ray here."""

    session: Fact[Session]
    session_disk: Fact[Folder]  # the file system of Ray's own folder
    address: Fact[str]
    token: Fact[str]  # the path of the token file
    status: Fact[Status | Trouble]


def collect(ask: Asker, python: PythonFacts) -> RayFacts:
    """Asks for all of them; the cluster only where an address is known, and with patience only from level 2 on."""
    here = ask(session.session)
    address = ask(session.address)
    return RayFacts(
        session=here,
        session_disk=_disk(ask, here),
        address=address,
        token=ask(session.token),
        status=_status(ask, address),
    )


def _disk(ask: Asker, here: Fact[Session]) -> Fact[Folder]:
    if here.value is None:
        return Fact(here.state, None, here.evidence)
    path = here.value.folder
    return ask(lambda host: folder(host, path, mounts(host).value or ()))


def _status(ask: Asker, address: Fact[str]) -> Fact[Status | Trouble]:
    """A cluster that is there answers in two or three seconds; for one that is not, level 1 does not wait."""
    if ask.level < 1:
        return not_asked(1)
    if address.value is None:
        return Fact(address.state, None, address.evidence)
    from npuenv.facts.ray.status import Refusal, Trouble  # most machines have no cluster to ask

    fact = _ask_status(ask)
    is_late = isinstance(fact.value, Trouble) and fact.value.kind is Refusal.TIMEOUT
    return not_asked(USE_LEVEL) if is_late and ask.level < USE_LEVEL else fact


def _ask_status(ask: Asker) -> Fact[Status | Trouble]:
    from npuenv.facts.ray import status as ray_status

    limit = ask.timeout(_STATUS_SHORT_S, _STATUS_S)
    beside = f"{ask.python.rpartition('/')[0]}/ray" if "/" in ask.python else "ray"
    fact = ask(lambda host: ray_status.status(host, beside, limit))
    if fact.state is State.ABSENT and beside != "ray":
        return ask(lambda host: ray_status.status(host, "ray", limit))
    return fact
