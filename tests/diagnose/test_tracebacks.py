"""Signs of tracebacks: whose code raised, and what an exception says without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import Verdict
from npuenv.diagnose.search import Text
from npuenv.diagnose.tracebacks import traceback_signs
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
