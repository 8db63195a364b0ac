"""Launch files as a Python program gets them: which release and stack they are for, and what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.app import LaunchOptions, render_launch, write_launch
from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")
VERL, ROLL = "verl-0.7.1-cann8.5.0", "roll-cann9.1.0"


@pytest.mark.parametrize(
    ("request_", "release", "named"),
    [
        (Request(VERL, "verl==0.9.1"), "", "0.9.1"),
        (Request(VERL), "0.9.1", "0.9.1"),
        (Request("roll-deepspeed-cann8.5.1"), "0.3.0", "0.3.0"),
        (Request(ROLL, "verl"), "", "verl"),
        (Request(framework="verl==0.7.1"), "0.9.1", "0.9.1"),
    ],
)
def test_a_stack_and_another_release_contradict_each_other(request_: Request, release: str, named: str) -> None:
    with pytest.raises(BadInput) as raised:
        render_launch(request_, LaunchOptions(release=release))
    assert named in say(raised.value.message)


@pytest.mark.parametrize(("request_", "release"), [(Request(VERL, "verl==0.7.1"), "0.7.1"), (Request(ROLL), "0.3.0")])
def test_a_stack_and_its_own_release_go_together(request_: Request, release: str) -> None:
    made = render_launch(request_, LaunchOptions(release="" if request_.framework else release))
    assert (made.stack.name, made.options.release) == (request_.stack, release)


def test_what_nobody_named_is_in_the_result() -> None:
    made = render_launch(Request(framework="roll"))
    assert (made.stack.framework, made.options.recipe) == ("roll", "agentic-frozen-lake")
    assert made.options.release and made.fits


def test_files_are_written_once_and_others_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.sh").write_text("mine", encoding="utf-8")
    for name in ("network.sh", "ray_head.sh"):
        (out / name).write_text("#!/bin/sh\n# npuenv 1: verl\n", encoding="utf-8")
    (out / "ray_worker.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    files = {"run.sh": "#!/bin/sh\n", "config.yaml": "a: 1\n"}
    with pytest.raises(BadInput, match=r"render\.exists"):
        write_launch(files, out)
    assert not (out / "config.yaml").exists()
    written = write_launch(files, out, is_forced=True)
    assert (written.files, written.removed) == (("run.sh", "config.yaml"), ("network.sh", "ray_head.sh"))
    assert {path.name for path in out.iterdir()} == {"run.sh", "config.yaml", "ray_worker.sh"}
    assert (out / "run.sh").stat().st_mode & 0o111 and not (out / "config.yaml").stat().st_mode & 0o111
    assert write_launch(files, out).files == ()
