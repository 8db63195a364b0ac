"""One pasted line alone: what it can mean, what tells the candidates apart, and what is expected and no cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import Diagnosis, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

ACL = "ModuleNotFoundError: No module named 'acl'"
PERMISSION = "device-permission"
# Line -> its candidates in order. The verdict is a cause only where the first one reaches its bar, which is higher for
# an exception of Python that says nothing of what it lacks.
LINES = {
    "E39011: package could not be loaded on the device": (Verdict.CAUSE, "driver-too-old", "cann-kernels-wrong"),
    "ImportError: libdrvdsmi_host.so: cannot open shared object file: No such file or directory": (
        Verdict.CAUSE, "driver-mount-incomplete", "lib-path-missing",
    ),
    ACL: (Verdict.CAUSE, "env-not-sourced", "cann-missing"),
    f"ray.exceptions.RaySystemError: {ACL}": (Verdict.CAUSE, "env-not-sourced", "cann-missing"),
    "E19999: Inner Error! The opp version does not match": (Verdict.CAUSE, "cann-kernels-wrong"),
    "ModuleNotFoundError: No module named 'rpds.rpds'": (
        Verdict.CANNOT_TELL, "extension-other-python", "pip-broken-install",
    ),
    "ModuleNotFoundError: No module named 'numpy._core._multiarray_umath'": (
        Verdict.CANNOT_TELL, "extension-other-python", "pip-broken-install",
    ),
    "RuntimeError: aclrtSetDevice, error code is 507899": (
        Verdict.CANNOT_TELL, "device-busy", PERMISSION, "memory-oom-config",
    ),
    "dcmi module initialize failed. ret is -8005": (
        Verdict.CANNOT_TELL, "device-busy", PERMISSION, "device-not-mounted",
    ),
    "CalledProcessError: Command '['bin/bishengir-compile', '/tmp/k.mlir']' returned non-zero exit status 1.": (
        Verdict.CANNOT_TELL, "triton-toolchain-mismatch",
    ),
    "1 nodes have joined so far, waiting for 2.": (Verdict.CANNOT_TELL, "ray-head-unreachable"),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_can_be_several_things_names_them_and_what_tells_them_apart(
    line: str, diagnosed: Callable[[str], Diagnosis]
) -> None:
    verdict, *causes = LINES[line]
    found = diagnosed(line)
    assert (found.verdict, [cause.id for cause in found.causes]) == (verdict, causes)
    assert found.causes[0].separate_by is not None
    if len(causes) > 1:
        assert found.causes[0].separate_by.other in causes[1:]


@pytest.mark.parametrize("sign", ["source /usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/cann-8.5.0"])
def test_a_sign_of_cann_leaves_the_session_as_the_cause(sign: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    assert "cann-missing" not in {cause.id for cause in diagnosed(f"{sign}\n{ACL}\n").causes}


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("root  1234  1  0 10:00 ?  00:00:00 [python] <defunct>", "zombies"),
        ("root  1234  1  0 10:00 ?  00:00:00 [python] <defunct>\nwe looked into 507033 yesterday", "zombies"),
        ("the first request takes 5 minutes", "first-request-slow"),
        ("首次请求很慢", "first-request-slow"),
    ],
)
def test_what_is_expected_is_said_to_be_and_no_cause(
    line: str, seen: str, diagnosed: Callable[[str], Diagnosis]
) -> None:
    found = diagnosed(line)
    assert (found.causes, [item.id for item in found.observations]) == ((), [seen])


def test_a_start_of_ray_that_came_to_its_end_waits_for_nobody(diagnosed: Callable[[str], Diagnosis]) -> None:
    text = "1 nodes have joined so far, waiting for 1.\nCurrent ray cluster resources: {'NPU': 16}\n"
    assert diagnosed(text).causes == ()


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("TypeError: execute_model() got an unexpected keyword argument 'x' in vllm_ascend/worker.py", "cannot-tell"),
        ("ImportError: /usr/lib/libfoo.so: undefined symbol: _ZN3c105ErrorC2E in libtorch_npu.so", "cause"),
        ("RuntimeError: call aclnnMatmul failed, error code is 561002", "cannot-tell"),
    ],
)
def test_what_reaches_the_bar_of_a_cause(line: str, verdict: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(line).verdict.value == verdict


def test_candidates_that_are_not_claimed_carry_each_the_command_that_shows_them(
    diagnosed: Callable[[str], Diagnosis],
) -> None:
    found = diagnosed("RuntimeError: aclrtSetDevice, error code is 507899")
    assert found.verdict is Verdict.CANNOT_TELL
    assert all(cause.separate_by and cause.separate_by.command for cause in found.causes)
