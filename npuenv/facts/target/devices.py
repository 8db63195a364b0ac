"""Uses every visible NPU device, each in a process of its own: copies numbers there and back, multiplies, compares.

The CPU's product decides. A word after the program's name is a number of seconds to keep multiplying for.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 64
TOLERANCE = 0.05  # for sums of 64 products from [-1, 1]; NPUs may multiply fp32 in a shorter format (HF32)
BURN_SIZE = 2048
BURN_TOLERANCE = 0.5  # for sums of 2048 such products, by the same measure
LIST_S = 25.0
USE_S = 40.0


def listed(_: int, seconds: float) -> dict[str, Any]:
    """What torch_npu sees. Counting may start the driver, which a process that forks must not have done."""
    torch = load()
    count = int(torch.npu.device_count())
    names = [str(torch.npu.get_device_name(number)) for number in range(count)]
    return {"is_available": bool(torch.npu.is_available()), "count": count, "names": names}


def used(number: int, seconds: float) -> dict[str, Any]:
    """What one device does with numbers."""
    torch = load()
    device = f"npu:{number}"
    torch.npu.set_device(number)
    generator = torch.Generator().manual_seed(20)
    size = BURN_SIZE if seconds else SIZE
    left = torch.rand(size, size, generator=generator) * 2 - 1
    right = torch.rand(size, size, generator=generator) * 2 - 1
    there, other = left.to(device), right.to(device)
    answer: dict[str, Any] = {"copies_exactly": bool(torch.equal(there.cpu(), left)), "rounds": 0}
    rows = left[:SIZE] @ right  # enough of it: a whole large product keeps every CPU busy
    ends = time.monotonic() + seconds
    worst = 0.0
    while True:
        wrong = float(((there @ other).cpu()[:SIZE] - rows).abs().max())
        worst = wrong if not math.isfinite(wrong) or wrong > worst else worst
        answer["rounds"] += 1
        if time.monotonic() >= ends or not math.isfinite(worst):
            break
    answer["worst_error"] = worst if math.isfinite(worst) else None
    answer["computes_correctly"] = math.isfinite(worst) and worst <= (BURN_TOLERANCE if seconds else TOLERANCE)
    return answer


def load() -> Any:
    """torch, with the NPU in it. Imported before the processes part, it is there in each of them."""
    torch = importlib.import_module("torch")
    importlib.import_module("torch_npu")
    return torch


def told(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}"


def start(work: Callable[[int, float], dict[str, Any]], number: int, seconds: float) -> tuple[int, int]:
    """(process, the end of the pipe on which its answer comes)."""
    reads, writes = os.pipe()
    process = os.fork()
    if process:
        os.close(writes)
        return process, reads
    try:
        document = work(number, seconds)
    except BaseException as error:  # whatever the device raises is the answer
        document = {"error": told(error)}
    os.write(writes, json.dumps(document).encode())
    os._exit(0)  # teardown of a device runtime may crash after the answer


def finish(processes: dict[int, tuple[int, int]], wait_s: float) -> dict[int, dict[str, Any]]:
    """Key -> answer. A process that hangs or dies without an answer gets an error that says so."""
    ends = time.monotonic() + wait_s
    texts = dict.fromkeys(processes, b"")
    is_open = {reads: key for key, (_, reads) in processes.items()}
    while is_open and time.monotonic() < ends:
        for reads in select.select(list(is_open), [], [], max(0.0, ends - time.monotonic()))[0]:
            part = os.read(reads, 65536)
            texts[is_open[reads]] += part
            if not part:
                del is_open[reads]
    answers = {}
    for key, (process, reads) in processes.items():
        hangs = reads in is_open
        if hangs:
            os.kill(process, signal.SIGKILL)
        try:
            answers[key] = json.loads(texts[key])
        except ValueError:
            answers[key] = {"error": f"no answer within {wait_s:.0f} s" if hangs else ended(process)}
    return answers


def ended(process: int) -> str:
    """How a process that gave no answer ended."""
    status = os.waitpid(process, 0)[1]
    return f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def summed_up(answer: dict[str, Any], cards: list[dict[str, Any]]) -> None:
    """Adds the cards and what is true of all that answered."""
    answer["cards"] = cards
    reached = [card for card in cards if not card["error"]]
    if cards and not reached:
        answer["error"] = cards[0]["error"]
    if reached:
        errors = [card["worst_error"] for card in reached]
        answer["copies_exactly"] = all(card["copies_exactly"] for card in reached)
        answer["computes_correctly"] = all(card["computes_correctly"] for card in reached)
        answer["worst_error"] = None if None in errors else max(errors)


def main() -> None:
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    answer: dict[str, Any] = {"is_available": False, "count": 0, "names": [], "copies_exactly": None, "cards": []}
    answer.update({"computes_correctly": None, "worst_error": None, "error": ""})
    answer["tolerance"] = BURN_TOLERANCE if seconds else TOLERANCE
    try:
        load()
        answer.update(finish({0: start(listed, 0, 0.0)}, LIST_S)[0])
    except BaseException as error:  # whatever importing raises is the answer
        answer["error"] = told(error)
    processes = {number: start(used, number, seconds) for number in range(answer["count"])}
    answers = finish(processes, USE_S + seconds)
    empty = {"copies_exactly": None, "computes_correctly": None, "worst_error": None, "rounds": 0, "error": ""}
    summed_up(answer, [{"number": number, **empty, **answers[number]} for number in sorted(answers)])
    sys.stdout.write("\nNPUENV-ANSWER " + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a child that cannot be killed is not waited for


sys.path[:] = [entry for entry in sys.path if entry]
main()
