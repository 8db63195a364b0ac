"""Uses the first NPU device: copies numbers there and back, multiplies two small matrices, compares with the CPU."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from typing import Any

SIZE = 64
TOLERANCE = 0.05  # for sums of 64 products from [-1, 1]; NPUs may multiply fp32 in a shorter format (HF32)


def use(answer: dict[str, Any]) -> None:
    """Fills the answer as far as it gets."""
    torch = importlib.import_module("torch")
    importlib.import_module("torch_npu")
    answer["is_available"] = bool(torch.npu.is_available())
    answer["count"] = int(torch.npu.device_count())
    answer["names"] = [str(torch.npu.get_device_name(number)) for number in range(answer["count"])]
    if answer["count"] == 0:
        return
    generator = torch.Generator().manual_seed(20)
    left = torch.rand(SIZE, SIZE, generator=generator) * 2 - 1
    right = torch.rand(SIZE, SIZE, generator=generator) * 2 - 1
    answer["copies_exactly"] = bool(torch.equal(left.to("npu:0").cpu(), left))
    product = (left.to("npu:0") @ right.to("npu:0")).cpu()
    worst = float((product - left @ right).abs().max())
    answer["worst_error"] = worst if math.isfinite(worst) else None
    answer["computes_correctly"] = math.isfinite(worst) and worst <= TOLERANCE


def main() -> None:
    answer: dict[str, Any] = {"is_available": False, "count": 0, "names": [], "copies_exactly": None}
    answer.update({"computes_correctly": None, "worst_error": None, "tolerance": TOLERANCE, "error": ""})
    try:
        use(answer)
    except BaseException as error:  # whatever the device raises is the answer
        text = str(error).strip().split("\n")[0]
        answer["error"] = f"{type(error).__name__}: {text}"
    sys.stdout.write("\nNPUENV-ANSWER " + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # teardown of a device runtime may crash after the answer


sys.path[:] = [entry for entry in sys.path if entry]
main()
