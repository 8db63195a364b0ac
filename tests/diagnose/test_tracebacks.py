"""Signs of tracebacks: whose code raised, and what an exception says without one."""

from __future__ import annotations

import pytest

from npuenv.diagnose.search import Text
from npuenv.diagnose.tracebacks import traceback_signs
from npuenv.host.report import read_paste

SITE = "/usr/lib/python3.11/site-packages"
OWN, TORCH = 'File "/home/me/run.py", line 3, in <module>', f'File "{SITE}/torch/cuda/__init__.py", line 9, in f'
PLUGIN = f'File "{SITE}/vllm_ascend/worker.py", line 7, in g'


def signs(*lines: str) -> set[str]:
    text = Text(read_paste("\n".join(lines).encode()).lines)
    return {name for name in traceback_signs(text) if not name.startswith("frame-")}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((OWN, TORCH, "AssertionError: no CUDA"), {"caller-own"}),
        ((OWN, PLUGIN, TORCH, "KeyError: 'a'"), {"caller-vllm_ascend", "slip-vllm_ascend"}),
        ((PLUGIN, "ValueError: bad option"), {"caller-vllm_ascend"}),
        (("KeyError: 'a'",), set()),
        (("AttributeError: 'NPUWorker' object has no attribute 'x'",), {"class-lacks-attribute"}),
        (("AttributeError: 'Qwen2Tokenizer' object has no attribute 'x'",), set()),
        (("AttributeError: 'NoneType' object has no attribute 'x'",), set()),
        (("TypeError: npu_rope() got an unexpected keyword argument 'x'",), {"operator-signature"}),
        (("TypeError: npu_wrap.<locals>._f() missing 1 required positional argument",), set()),
        (("ImportError: cannot import name 'HfFolder' from 'huggingface_hub' (/a.py)",), {"symbol-missing"}),
        (("ImportError: cannot import name 'LLM' from 'vllm' (/a.py)",), set()),
        (("ImportError: cannot import name 'A' from 'peft' (unknown location)",), set()),
        (("ModuleNotFoundError: No module named 'rpds.rpds'",), {"submodule-missing"}),
    ],
)
def test_the_signs_of_a_traceback(lines: tuple[str, ...], found: set[str]) -> None:
    assert signs(*lines) == found
