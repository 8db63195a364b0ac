"""What is written for uv where a package has an index of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.facts.pip import PipSettings
from npuenv.host.local import LocalHost
from npuenv.lock.inputs import CONSTRAIN, EXCLUDE, REPLACE, REQUIRE, Inputs, Line
from npuenv.lock.uv import Resolver, Supply, write_inputs
from npuenv.resolve.types import Platform

if TYPE_CHECKING:
    from pathlib import Path


def test_only_its_override_is_left_out(tmp_path: Path) -> None:
    texts = {REQUIRE: "torch==2.8.0", CONSTRAIN: "torch<2.9", REPLACE: "torch==2.8.0", EXCLUDE: "torch"}
    platform = Platform(arch="x86_64", python="3.11")
    inputs = Inputs(tuple(Line(kind, text, "here") for kind, text in texts.items()), platform)
    resolver = Resolver(LocalHost(), "uv", PipSettings(), {"cpu": "https://cpu.invalid/whl"})
    for on_index, replaced in (({}, "torch==2.8.0\n"), ({"torch": "cpu"}, "")):
        folder = tmp_path / (replaced.strip() or "nothing")
        folder.mkdir()
        write_inputs(inputs, Supply(on_index=on_index), resolver, folder)
        written = {path.stem: path.read_text() for path in folder.glob("*.txt")}
        assert written == {"constrain": "torch<2.9\n", "replace": replaced, "exclude": "torch\n"}
