"""What is written for uv where a package has an index of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npuenv.facts.pip import PipSettings
from npuenv.host import Looked, PathState, Ran
from npuenv.host.local import LocalHost
from npuenv.lock.inputs import CONSTRAIN, EXCLUDE, REPLACE, REQUIRE, InputLine, Inputs
from npuenv.lock.uv import Resolver, Supply, write_inputs
from npuenv.resolve.types import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass
class Recording:
    """A host that keeps what it is asked to run."""

    ran: list[Sequence[str]] = field(default_factory=list)
    name: str = "recording"

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        self.ran.append(argv)
        return Ran(tuple(argv), 0, "", "")

    def look(self, path: str) -> Looked:
        return Looked(path, PathState.ABSENT)

    def environ(self) -> Mapping[str, str]:
        return {}


def test_an_index_named_for_one_run_alone_is_used_though_pip_is_told_to_use_none() -> None:
    host = Recording()
    resolver = Resolver(host, "uv", PipSettings(is_no_index=True), {})
    for is_cut_off in (False, True):
        resolver.run(("pip", "compile"), is_cut_off=is_cut_off)
    assert ["--no-index" in argv for argv in host.ran] == [True, False]


def test_only_its_override_is_left_out(tmp_path: Path) -> None:
    texts = {REQUIRE: "torch==2.8.0", CONSTRAIN: "torch<2.9", REPLACE: "torch==2.8.0", EXCLUDE: "torch"}
    platform = Platform(arch="x86_64", python="3.11")
    inputs = Inputs(tuple(InputLine(kind, text, "here") for kind, text in texts.items()), platform)
    resolver = Resolver(LocalHost(), "uv", PipSettings(), {"cpu": "https://cpu.invalid/whl"})
    for on_index, replaced in (({}, "torch==2.8.0\n"), ({"torch": "cpu"}, "")):
        folder = tmp_path / (replaced.strip() or "nothing")
        folder.mkdir()
        write_inputs(inputs, Supply(on_index=on_index), resolver, folder)
        written = {path.stem: path.read_text() for path in folder.glob("*.txt")}
        assert written == {"constrain": "torch<2.9\n", "replace": replaced, "exclude": "torch\n"}
