"""Package lists of reported failures: the check that names the cause speaks, on the versions alone."""

from __future__ import annotations

import dataclasses

import pytest

from npuenv.checks import PYTHON as CHECKS
from npuenv.checks import check_all
from npuenv.core.fact import absent, known
from npuenv.core.finding import Status
from npuenv.facts.collector import not_asked
from tests.support.changes import HEALTHY, WHY

# Where it was reported, the versions there, Python, CANN ("" unknown), and the checks of which one has to speak.
CASES = [
    (
        "vllm-ascend#477",
        "torch 2.5.1, torch-npu 2.5.1.dev20250320, torchvision 0.21.0",
        "3.10",
        "",
        {"python.torchvision"},
    ),
    (
        "vllm-ascend#7359",
        "torch 2.9.0+cpu, torch-npu 2.9.0, triton 3.6.0, triton-ascend 3.2.0, vllm 0.15.0+empty, vllm-ascend 0.15.0rc1",
        "3.11",
        "8.5.0",
        {"python.triton"},
    ),
    (
        "vllm-ascend#143",
        "vllm 0.7.1+empty, vllm-ascend 0.7.1rc1, torch 2.5.1, torch-npu 2.5.1rc1",
        "3.10",
        "",
        {"python.limits"},
    ),
    ("sglang#28628", "torch 2.12.0, torch-npu 2.8.0.post2", "3.11", "", {"python.torch-pair"}),
    ("triton-ascend#306", "triton 3.6.0, triton-ascend 3.2.1, vllm 0.20.2+empty", "3.11", "", {"python.triton"}),
    (
        "vllm-ascend#2046",
        "vllm 0.9.1+empty, vllm-ascend 0.9.1rc1, torch 2.5.1, torch-npu 2.5.1.post1.dev20250528, transformers 4.54.0",
        "3.11",
        "",
        {"python.limits"},
    ),
    (
        "LlamaFactory#4382",
        "numpy 2.0.0, torch 2.1.0, torch-npu 2.1.0.post3, transformers 4.41.2",
        "3.10",
        "",
        {"python.limits"},
    ),
    (
        "vllm-ascend#1875",
        "vllm 0.9.2+empty, vllm-ascend 0.9.2rc1, numpy 2.2.6",
        "3.11",
        "",
        {"python.vllm-ascend-needs", "python.numpy"},
    ),
    ("verl faq", "mindspeed 2.1.0_core_r0.8.0, verl 0.7.0", "3.11", "", {"python.mindspeed"}),
    ("Ascend/pytorch#38", "torch-npu 2.1.0, torch 2.1.0", "3.11", "", {"python.version"}),
]


@pytest.mark.parametrize(("thread", "versions", "python", "cann", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_a_reported_list_of_packages_is_found_wrong(
    thread: str, versions: str, python: str, cann: str, wanted: set[str]
) -> None:
    assert HEALTHY.python.interpreter.value is not None and HEALTHY.cann.toolkit.value is not None
    distributions = dict(item.split(" ") for item in versions.split(", "))
    backends = () if thread == "triton-ascend#306" else ("ascend",)
    interpreter = HEALTHY.python.interpreter.value._replace(
        version=f"{python}.9", distributions=distributions, triton_backends=backends
    )
    blank = {field.name: not_asked(1) for field in dataclasses.fields(HEALTHY.python)}
    group = dataclasses.replace(HEALTHY.python, **{**blank, "interpreter": known(interpreter, WHY)})
    toolkit = known(HEALTHY.cann.toolkit.value._replace(version=cann), WHY) if cann else absent(WHY)
    facts = dataclasses.replace(HEALTHY, python=group, cann=dataclasses.replace(HEALTHY.cann, toolkit=toolkit))
    found = {
        item.check for item in check_all(facts, level=1, checks=CHECKS) if item.status in (Status.FAIL, Status.WARN)
    }
    assert found & wanted, found
    assert len(found) <= 2, found
