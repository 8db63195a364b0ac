"""Signs of tracebacks: whose code raised, and what an exception says without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import Verdict
from npuenv.diagnose.outcome import traceback_signs
from npuenv.diagnose.text import Text
from npuenv.host.report import read_paste

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis

SITE = "/usr/lib/python3.11/site-packages"
OWN, TORCH = 'File "/home/me/run.py", line 3, in <module>', f'File "{SITE}/torch/cuda/__init__.py", line 9, in f'
PLUGIN = f'File "{SITE}/vllm_ascend/worker.py", line 7, in g'
ENGINE = f'File "{SITE}/vllm/v1/engine/utils.py", line 782, in wait_for_engine_startup'
GATHER = f'File "{SITE}/torch/distributed/c10d_logger.py", line 83, in wrapper'
REMOTE = f'File "{SITE}/ray/_private/worker.py", line 2772, in get'
SHIPPED = 'File "/tmp/ray/session_1/_ray_pkg_0/verl/utils/device.py", line 197, in get_npu_versions'
CUT = f'File "{SITE}/triton/backends/ascend/driver.py", in get_active_torch_device'
CARD = f'File "{SITE}/torch_npu/npu/_backends.py", line 39, in get_soc_version'


def signs(*lines: str) -> set[str]:
    text = Text(read_paste("\n".join(lines).encode()).lines)
    return {name for name in traceback_signs(text) if not name.startswith("frame-")}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((OWN, TORCH, "AssertionError: no CUDA"), {"caller-own"}),
        ((OWN, PLUGIN, TORCH, "KeyError: 'a'"), {"caller-vllm_ascend", "slip-vllm_ascend", "framework-raised"}),
        ((PLUGIN, "ValueError: bad option"), {"caller-vllm_ascend"}),
        ((PLUGIN, "ValueError: bad option", PLUGIN, "RuntimeError: Engine core failed"), {"caller-vllm_ascend"}),
        ((PLUGIN, "ray.exceptions.RayTaskError(ValueError): ray::main()"), set()),
        (("KeyError: 'a'",), set()),
        (("AttributeError: 'NPUWorker' object has no attribute 'x'",), {"class-lacks-attribute"}),
        (("AttributeError: 'Qwen2Tokenizer' object has no attribute 'x'",), set()),
        (("AttributeError: 'NoneType' object has no attribute 'x'",), set()),
        (("TypeError: npu_rope() got an unexpected keyword argument 'x'",), {"operator-signature"}),
        (("TypeError: npu_wrap.<locals>._f() missing 1 required positional argument",), set()),
        (("ModuleNotFoundError: No module named 'rpds.rpds'",), {"submodule-missing"}),
        ((PLUGIN, "AssertionError"), {"caller-vllm_ascend", "framework-raised"}),
        ((PLUGIN, "AssertionError: the number of heads must be even"), {"caller-vllm_ascend"}),
        ((PLUGIN, "AssertionError: args is not initialized."), {"caller-vllm_ascend", "framework-raised"}),
        ((PLUGIN, TORCH), {"framework-raised"}),
        ((PLUGIN, GATHER), set()),
        ((PLUGIN, CARD), set()),
        ((PLUGIN, ENGINE), set()),
        ((PLUGIN, REMOTE), set()),
        ((PLUGIN, "RuntimeError:"), {"caller-vllm_ascend"}),
        ((PLUGIN, "vllm.v1.engine.exceptions.EngineDeadError:"), {"caller-vllm_ascend"}),
        (
            (PLUGIN, "ModuleNotFoundError: No module named 'vllm_ascend.ops'"),
            {"caller-vllm_ascend", "framework-raised", "submodule-missing", "own-submodule-missing"},
        ),
        (
            (ENGINE, PLUGIN, "ModuleNotFoundError: No module named 'vllm.ops'"),
            {"caller-vllm_ascend", "framework-raised", "submodule-missing"},
        ),
        (
            (PLUGIN, "ImportError: cannot import name 'f' from 'accelerate.utils' (a.py)"),
            {"caller-vllm_ascend", "framework-raised", "imports-across", "importer-vllm_ascend"},
        ),
        (
            (PLUGIN, "RuntimeError: Failed to import a because of", "cannot import name 'f' from 'accelerate.utils'"),
            {"caller-vllm_ascend", "framework-raised", "imports-across", "importer-vllm_ascend"},
        ),
        (
            (PLUGIN, "ImportError: cannot import name 'f' from 'vllm_ascend.utils' (a.py)"),
            {"caller-vllm_ascend", "framework-raised"},
        ),
        (
            (PLUGIN, "ImportError: cannot import name 'override' from 'typing' (/usr/lib/python3.9/typing.py)"),
            {"caller-vllm_ascend", "framework-raised"},
        ),
        ((OWN, "ImportError: cannot import name 'f' from 'peft' (a.py)"), {"caller-own"}),
        (("RuntimeError: HCCL function error: hcclCommInitRootInfo, error code is 4", PLUGIN), set()),
        ((SHIPPED, "subprocess.CalledProcessError: Command 'a' failed"), {"caller-verl", "framework-raised"}),
        ((CUT, "NameError: name 'torch' is not defined"), {"caller-triton", "slip-triton"}),
        (("Exception ignored in: <f>", PLUGIN, "AttributeError: x"), {"caller-vllm_ascend", "slip-vllm_ascend"}),
    ],
)
def test_the_signs_of_a_traceback(lines: tuple[str, ...], found: set[str]) -> None:
    assert signs(*lines) == found


@pytest.mark.parametrize("error", ["RuntimeError: Unsupported layout", "pydantic.ValidationError: x", ""])
def test_a_framework_that_raises_is_a_candidate_only_where_nothing_else_is_found(
    error: str, diagnosed: Callable[[str], Diagnosis]
) -> None:
    report = f"Ascend 910B3\nTraceback (most recent call last):\n  {PLUGIN}\n{error}\n"
    found = diagnosed(report)
    assert (found.verdict, [cause.id for cause in found.causes]) == (Verdict.CAUSE, ["framework-known-bug"])
    beside = diagnosed(f"{report}RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB\n")
    assert [cause.id for cause in beside.causes] == ["memory-oom-config"]


@pytest.mark.parametrize(
    "report",
    [
        "[Error]: The aicore execution is abnormal.\nRuntimeError: NPU is selected, but torch_npu is not available.\n",
        "NPU type: Ascend910B3\nimage.py:14: UserWarning: 'libc10_cuda.so: cannot open shared object file' "
        "you can ignore this warning.\nE69999: Inner Error!\n",
        f"Ascend 910B3, 16 heads are not divisible by 6\n  {PLUGIN}\n",
    ],
    ids=["wrapped", "harmless warning", "refused in the title"],
)
def test_what_stands_around_an_error_is_no_cause(report: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(report).verdict is not Verdict.CAUSE
