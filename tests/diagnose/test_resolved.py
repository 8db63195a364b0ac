"""A session in which an error was mended: the same command, typed again, works. And all that only looks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import Verdict
from npuenv.diagnose.log_prefixes import bare
from npuenv.diagnose.resolved import mended
from npuenv.host.report import read_paste

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis

HOST = "[root@host1 ~]#"
IMPORT = 'python3 -c "import torch, torch_npu"'
NO_HCCL = "ImportError: libhccl.so: cannot open shared object file: No such file or directory"
SOURCE = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
OOM = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"
STEPS = "step 1/9 loss 2.31 lr 1e-5\nstep 2/9 loss 2.30 lr 1e-5"
NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement torch-npu==2.7.1 (from versions: none)\n"
    "ERROR: No matching distribution found for torch-npu==2.7.1"
)


def session(*typed: tuple[str, str], prompt: str = HOST) -> str:
    """What a terminal shows of commands and their output, an empty prompt last."""
    return "\n".join([*(f"{prompt} {command}\n{output}".rstrip() for command, output in typed), prompt])


def history(report: str) -> set[int]:
    """Numbers of the lines whose error is history."""
    lines = bare(read_paste(report.encode()).lines)
    return {lines[at].number for at in mended(lines)}


MENDED = session((IMPORT, NO_HCCL), (SOURCE, ""), (IMPORT, ""))


def test_the_same_command_typed_again_after_something_was_done_makes_the_error_history() -> None:
    assert history(MENDED) == {1, 2}


@pytest.mark.parametrize("command", ["python train.py", "vllm serve /models/Qwen3-8B"])
def test_what_fails_after_the_mending_is_the_finding(command: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed(session((IMPORT, NO_HCCL), (SOURCE, ""), (IMPORT, ""), (command, OOM)))
    assert (found.verdict, found.causes[0].id, found.causes[0].line.number) == (Verdict.CAUSE, "memory-oom-config", 6)
    past = found.causes[-1]
    assert (past.id, past.line.number, past.confidence) == ("env-not-sourced", 2, 0.25)


def test_a_mended_error_alone_is_no_cause_and_nothing_is_called_fine(diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(session((IMPORT, NO_HCCL))).verdict is Verdict.CAUSE
    pairs = "torch==2.7.1\ntorch-npu==2.7.1\nvllm==0.11.0\nvllm-ascend==0.11.0rc1\nCANN 8.3.RC1"
    for report in (MENDED, f"{pairs}\n{MENDED}"):
        found = diagnosed(report)
        assert found.verdict is Verdict.CANNOT_TELL
        assert [(cause.id, cause.confidence) for cause in found.causes] == [("env-not-sourced", 0.25)]


def test_a_run_that_works_now_works(diagnosed: Callable[[str], Diagnosis]) -> None:
    step = "step:2 - actor/pg_loss:0.1 - actor/grad_norm:0.3"
    found = diagnosed(session(("bash train.sh", NO_HCCL), (SOURCE, ""), ("bash train.sh", step)))
    assert (found.verdict, found.causes) == (Verdict.NOT_ENVIRONMENT, ())


@pytest.mark.parametrize(
    "between",
    [
        ("export LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64:$LD_LIBRARY_PATH", ""),
        ("unset ASCEND_RT_VISIBLE_DEVICES", ""),
        ("sudo usermod -aG HwHiAiUser me", ""),
        ("pip install torch-npu==2.7.1", "Successfully installed torch-npu-2.7.1"),
        ("sudo pkill -9 python && sleep 5", ""),
        ("./Ascend-cann-toolkit_8.3.RC1_linux-aarch64.run --install", "[Toolkit] install success"),
    ],
)
def test_this_mends(between: tuple[str, str]) -> None:
    assert history(session((IMPORT, NO_HCCL), ("ls /usr/local/Ascend", "driver"), between, (IMPORT, ""))) == {1, 2}


@pytest.mark.parametrize(
    "between",
    [
        (),
        (("npu-smi info -l", "Total Count : 8"),),
        ((IMPORT, NO_HCCL), ("env", "HOME=/root")),
        ((SOURCE, ""), ("cd /tmp", "")),
        ((SOURCE, ""), ("export ASCEND_RT_VISIBLE_DEVICES=0", "")),
        (("echo hi 2>&1", "hi"),),
        (("cat /etc/os-release > /dev/null", ""),),
        (("pip install torch-npu==9", "ERROR: Could not find a version that satisfies the requirement torch-npu==9"),),
        (("env -i bash", ""), (SOURCE, "")),
        (("newgrp HwHiAiUser", ""), (SOURCE, "")),
        (("alias python3=/opt/python3", ""), (SOURCE, "")),
        (("LD_PRELOAD=/opt/conda/lib/libgomp.so.1", ""),),
        ((SOURCE, ""), ("export PATH=/opt/bin:$PATH TORCH_DEVICE_BACKEND_AUTOLOAD=0", "")),
        (("docker exec -it train bash", ""), (SOURCE, "")),
        (("ssh host2", ""), (SOURCE, "")),
        (("conda activate other", ""), (SOURCE, "")),
        (("source ~/venv/bin/activate", ""),),
        (("vim conf.yaml", ""), (SOURCE, "")),
        (("cp small.yaml conf.yaml", ""),),
        ((SOURCE, "and inside the other container it works"),),
        ((SOURCE, ""), ("git checkout main", "")),
        ((SOURCE, "But on the other machine"),),
        ((SOURCE, "\n## Another container"),),
        ((SOURCE, "另一台机器上"),),
        ((SOURCE, "and here with eight cards:"),),
        ((SOURCE, "```\n```"),),
    ],
)
def test_another_place_another_setting_or_no_change_mends_nothing(between: tuple[tuple[str, str], ...]) -> None:
    assert history(session((IMPORT, NO_HCCL), *between, (IMPORT, ""))) == set()


def test_another_prompt_is_another_place() -> None:
    for other in ("[root@host2 ~]#", "(npu) [root@host1 ~]#", "[root@host1 work]#", "$"):
        report = f"{session((IMPORT, NO_HCCL), (SOURCE, ''))}\n{session((IMPORT, ''), prompt=other)}"
        assert history(report) == set()
    assert history(session((IMPORT, NO_HCCL), (SOURCE, ""), (IMPORT, ""), prompt="$")) == {1, 2}
    assert history(session((IMPORT, NO_HCCL), (SOURCE, ""), (IMPORT, ""), prompt="#")) == set()


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (IMPORT, NO_HCCL),
        (IMPORT, "Killed"),
        (IMPORT, "Segmentation fault (core dumped)"),
        (IMPORT, "some other failure"),
        (IMPORT, "..."),
        (IMPORT, "same as above"),
        (IMPORT, "还是一样"),
        (IMPORT, "^C"),
        (IMPORT, "卡住"),
        ("python t.py", ""),
        ("npu-smi info > out.txt 2>&1", ""),
        ("python train.py", "INFO loading the model"),
        ("vllm serve /m", "INFO 11-22 10:00:00 [api_server.py:1] args: x"),
        ("python train.py", "step 1/9 loss nan"),
        ("python train.py", f"{STEPS}\n{OOM}"),
    ],
)
def test_a_run_that_does_not_say_that_it_works_mends_nothing(command: str, output: str) -> None:
    assert history(session((command, NO_HCCL), (SOURCE, ""), (command, output))) == set()


def test_a_run_that_has_not_returned_or_returned_a_bad_code_mends_nothing() -> None:
    assert history(MENDED.removesuffix(HOST)) == set()
    assert history(f"{MENDED.removesuffix(HOST)}[root@host2 ~]# ls") == set()
    assert history(f"{MENDED} ls") == {1, 2}
    asked = ((IMPORT, NO_HCCL), (SOURCE, ""), (IMPORT, ""))
    assert history(session(*asked, ("echo $?", "1"))) == set()
    assert history(session(*asked, ("echo $?", "0"))) == {1, 2}


def test_an_error_that_comes_back_is_no_history(diagnosed: Callable[[str], Diagnosis]) -> None:
    again = session((IMPORT, NO_HCCL), (SOURCE, ""), (IMPORT, ""), ("bash", ""), (IMPORT, NO_HCCL))
    assert history(again) == set()
    elsewhere = session((IMPORT, NO_HCCL), (SOURCE, ""), (IMPORT, ""), ("python train.py", NO_HCCL))
    assert history(elsewhere) == {1, 2}
    found = diagnosed(elsewhere)
    assert (found.verdict, found.causes[0].id, found.causes[0].line.number) == (Verdict.CAUSE, "env-not-sourced", 6)
    assert {cause.line.number for cause in found.causes} == {6}


def test_an_error_in_the_course_of_work_may_come_and_go() -> None:
    run = "python train.py"
    assert history(session((run, OOM), ("pkill -9 python", ""), (run, STEPS))) == {1, 2}
    assert history(session((run, f"{STEPS}\n{OOM}"), ("pkill -9 python", ""), (run, STEPS))) == set()


def test_pip_that_finds_a_package_elsewhere_has_mended_it(diagnosed: Callable[[str], Diagnosis]) -> None:
    first = ("pip install torch-npu==2.7.1", NOT_FOUND)
    found_it = "Looking in indexes: https://example.org/simple\nSuccessfully installed torch-npu-2.7.1"
    second = ("pip install torch-npu==2.7.1 --extra-index-url https://example.org/simple", found_it)
    assert history(session(first, second)) == {1, 2, 3}
    failing = diagnosed(session(first, second, ("python train.py", OOM)))
    assert failing.causes[0].id == "memory-oom-config"
    for other in (
        "pip install torch-npu==2.6.0",
        "python3.11 -m pip install torch-npu==2.7.1",
        f"{first[0]} --no-deps",
    ):
        assert history(session(first, (other, found_it))) == set()


def test_where_lines_were_not_looked_at_nothing_is_history() -> None:
    noise = "\n".join(f"progress {number} of many" for number in range(3000))
    assert history(f"{MENDED}\n{noise}\n{HOST} ls") == set()
    assert history(f"{MENDED}\n{HOST} ls") == {1, 2}
