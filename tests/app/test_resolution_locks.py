"""Locks as a Python program gets them: which lock counts, and when one is made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.app import LockOptions, lock, lock_request
from npuenv.app.resolution import own_locks
from npuenv.cli.progress import StepProgress
from npuenv.core.errors import CannotTell, ExitCode
from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.lock.file import Missing
from npuenv.lock.store import put_lock
from npuenv.lock.uv import Resolver, find_uv
from npuenv.resolve.types import Request
from npuenv.terminal.run import Ui
from tests.cli.test_lock import NOWHERE, cpu_stack, lock_by_hand, offer, own_lock, tiny_stack

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")
CPU = Request(stack="cpu", arch="x86_64", python="3.11")


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.mark.usefixtures("no_index")
def test_a_lock_made_from_other_inputs_is_passed_over(home: Path) -> None:
    own = lock_by_hand(cpu_stack(), {})
    own_lock(home, own)
    found = lock_request(CPU)
    assert (found.lock, found.exit_code, found.stack.name) == (own, ExitCode.FINE, "cpu")
    own_lock(home, replace(own, inputs="b" * 64))
    assert lock_request(CPU).lock.inputs != "b" * 64


def test_fill_completes_a_partial_lock_where_its_index_answers(
    home: Path, fresh_uv_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(home / "index", "base", "1.0")
    offer(home / "index", "upper", "1.0", requires=("base",))
    digest = offer(home / "special", "torx", "9.1", requires=("base",))
    monkeypatch.setenv("PIP_INDEX_URL", (home / "index/simple").as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(fresh_uv_cache))
    stack, host = tiny_stack(), LocalHost()

    def resolver(url: str) -> Resolver:
        return Resolver(host, find_uv(), pip_settings(host), {"special": url})

    partial = lock(stack, resolver(NOWHERE), fill=False)
    missing = partial.missing[0]
    assert replace(missing, detail="") == Missing("torx", "9.1", "index-out-of-reach", "special")
    put_lock(partial, own_locks())
    assert lock(stack, resolver((home / "special/simple").as_uri()), fill=False) == partial
    whole = lock(stack, resolver((home / "special/simple").as_uri()), fill=True, progress=StepProgress(Ui("en")))
    filled = replace(partial.packages[1], sha256=(digest,))
    assert filled.name == "torx" and whole.is_complete
    assert whole.packages == (replace(partial.packages[0], why=whole.packages[0].why), filled, partial.packages[2])
    assert lock(stack, resolver(NOWHERE), fill=True) == whole  # kept: nothing is asked any more
    assert "locking tiny" in capsys.readouterr().out


def test_offline_a_lock_is_not_made_from_an_index(home: Path, fresh_uv_cache: Path) -> None:
    with pytest.raises(CannotTell, match=r"lock\.index-out-of-reach"):
        lock_request(CPU, LockOptions(renew=True, is_offline=True))
    assert not own_locks().exists()
