"""What no report may be blamed for: stacks that fit, settings and states beside failures of code and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import Verdict
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis

SITE = "/usr/local/lib/python3.11/site-packages"
FAILURES = {
    "a key that the user's file lacks": (
        'Traceback (most recent call last):\n  File "/app/x.py", line 5, in <module>\n    a["b"]\nKeyError: \'b\''
    ),
    "shapes": (
        '  File "/app/m.py", line 9, in forward\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)'
    ),
    "an operator's parameters": (
        "RuntimeError: call aclnnMatmul failed, detail:EZ1001: [PID: 12] input shape of self and mat2 do not match. "
        "error code is 161002\n[ERROR] 2025-11-02-10:00:00 (PID:12, Device:0) ERR01100 OPS call acl api failed"
    ),
    "a kernel that reads outside": "[Error]: The aicore execution is abnormal.\n  kernel_name=Gather, result = 507015",
    "a request that is too long": "openai.BadRequestError: Error code: 400 - {'message': 'maximum context length'}",
    "an assertion of the engine on a setting": (
        f'  File "{SITE}/vllm_ascend/worker/model_runner_v1.py", line 700, in execute_model\n'
        "AssertionError: num_speculative_tokens must be 1 for this model"
    ),
    "an unknown option": "vllm serve: error: unrecognized arguments: --enable-superfast",
    "an unknown model": "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
    "accuracy": "The answers are garbled for prompts above 8k tokens, short prompts are fine.",
    "speed": "TTFT is 2 s and TPOT 60 ms at concurrency 8, slower than the last release.",
    "a hang": "The server hangs after about two hours and prints nothing.",
    "a dead engine without its cause": "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "a task of the user": (
        'ray.exceptions.RayTaskError(ValueError): ray::run()\n  File "/app/t.py", line 2, in run\nValueError: no rows'
    ),
}
SLIPS = (
    f"  File \"{SITE}/vllm/models/qwen3.py\", line 7, in load\nAttributeError: 'Model' object has no attribute 'q'",
    f'  File "{SITE}/vllm_ascend/worker/model_runner_v1.py", line 700, in execute_model\nAssertionError',
)
STATES = {
    "an older driver": "npu-smi 24.1.0                   Version: 24.1.0\nversion=8.3.RC1",
    "an older CANN": "version=8.0.0",
    "a newer ray": "ray                       2.51.0",
    "another torchvision": "torchvision               0.21.0",
    "plain triton": "triton                    3.3.1",
    "both tritons": "triton                    3.5.0\ntriton-ascend             3.2.1",
    "cards in falling order": "export ASCEND_RT_VISIBLE_DEVICES=3,1",
    "a run line that mounts a part": (
        "docker run -it --device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm "
        "--device /dev/hisi_hdc -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64 img bash"
    ),
    "a run line without cards": "docker run -it --net=host my/img:1 bash",
    "limits as they come": "$ ulimit -n\n1024\n$ df /dev/shm\nshm              64M     0   64M   0% /dev/shm",
    "settings of memory": "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
    "settings of many nodes": (
        "export HCCL_IF_IP=10.0.0.1\nexport HCCL_SOCKET_IFNAME=eth0\nexport TP_SOCKET_IFNAME=eth0\n"
        "export HCCL_CONNECT_TIMEOUT=600\nexport HCCL_EXEC_TIMEOUT=900\nexport RANK_TABLE_FILE=/a/hccl.json"
    ),
    "what each start of Ray prints about tokens": (
        "WARNING authentication_token_setup.py:85 -- Token authentication is enabled for this Ray cluster. Set "
        "RAY_AUTH_MODE=disabled to opt out. For more information, see https://docs.ray.io/en/latest/\n"
        "WARNING authentication_token_setup.py:72 -- Token authentication is disabled for this Ray cluster. To enable "
        "token authentication, generate a token with `ray get-auth-token --generate` or set RAY_AUTH_MODE=token."
    ),
    "an old compiler": "GCC version: (GCC) 7.3.0",
    "a collected process": "root 77 1 0 09:00 ? 00:00:00 [python] <defunct>",
    "cables that one machine does not need": "link status: DOWN",
}  # fmt: skip
PAIR = "torch                     2.7.1+cpu\ntorch_npu                 2.7.1\n"


def stacks() -> list[str]:
    """Package lists of the newest releases of vllm-ascend, as the tables pair them."""
    found = []
    for row in load_matrix().vllm_ascend:
        if row.torch_npu and row.vllm:
            torch = row.torch_npu.partition(".post")[0].partition("rc")[0].partition(".dev")[0]
            found.append(
                f"torch                     {torch}+cpu\ntorch_npu                 {row.torch_npu}\n"
                f"vllm                      {row.vllm}+empty\nvllm_ascend               {row.version}\n"
                f"numpy                     1.26.4\nCANN: {row.cann_image or row.cann}\n"
            )
    return found[-8:]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_stack_that_fits_is_not_blamed(failure: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    assert len(stacks()) == 8
    for stack in stacks():
        assert diagnosed(f"{stack}{FAILURES[failure]}\n").causes == (), stack


@pytest.mark.parametrize("state", STATES)
@pytest.mark.one_in(2)
def test_a_state_is_not_blamed_for_what_it_does_not_cause(state: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    for name, failure in FAILURES.items():
        assert diagnosed(f"{PAIR}{STATES[state]}\n{failure}\n").verdict is not Verdict.CAUSE, name
    assert diagnosed(f"{PAIR}{STATES[state]}\n").verdict is not Verdict.CAUSE


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_inside_of_a_framework_is_that_release_s_and_no_fault_of_the_stack(
    slip: str, diagnosed: Callable[[str], Diagnosis]
) -> None:
    for around in (*stacks(), *(PAIR + state for state in STATES.values())):
        found = diagnosed(f"{around}\n{slip}\n")
        assert [cause.id for cause in found.causes] == ["framework-known-bug"], around
        assert found.causes[0].confidence < 0.7


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("FRACTAL_NZ mode is enabled", "nz-enabled-in-rl"),
        ("please upgrade the driver", None),
        ("[ERROR] please upgrade the driver", "driver-too-old"),
        ("HCCL_SOCKET_IFNAME=not-found-yet", None),
        ("[ERROR] HCCL(1): HCCL_SOCKET_IFNAME ens3 not found", "hccl-ifname"),
        ("ERROR: No matching distribution found for torch-npu", "pip-index"),
    ],
)
def test_what_is_printed_counts_and_what_is_set_does_not(
    line: str, cause: str | None, diagnosed: Callable[[str], Diagnosis]
) -> None:
    found = diagnosed(f"{line}\n")
    assert (found.causes[0].id if found.verdict is Verdict.CAUSE else None) == cause
