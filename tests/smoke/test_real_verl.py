"""`npuenv smoke-train --backend verl` with the real verl, which a shim lets train on a CPU."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from tests.support import verl_on_cpu
from tests.support.stub_cann.target import NotToBeHad

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.registry,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="needs x86_64 Linux"
    ),
]


def test_three_steps_of_the_real_verl_are_read_while_it_trains_and_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    try:
        python = verl_on_cpu.make(tmp_path / "env")
    except NotToBeHad as error:
        pytest.skip(f"no environment with verl: {error}")
    verl_on_cpu.make_model(python, tmp_path / "model")
    out = tmp_path / "out"
    places = ["--target", str(tmp_path / "env"), "--model", str(tmp_path / "model"), "-o", str(out)]
    code = main(["smoke-train", "--backend", "verl", *places, "--json", "steps=3", *verl_on_cpu.settings()])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["verdict"]) == (0, "pass"), (out / "trainer.log").read_text()[-4000:]
    judged = {"training.completed", "training.losses-finite", "training.reward", "training.validated"}
    assert {each["check"] for each in document["findings"] if each["status"] == "ok"} == judged
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["release"] == verl_on_cpu.RELEASE
    steps = [record for record in records if record["kind"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(math.isfinite(step["actor/loss"]) and step["actor/grad_norm"] > 0 for step in steps)
    assert [record["step"] for record in records if record["kind"] == "eval"] == [0, 3]
