"""What lacks in an environment, and which of several findings of one fault speaks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from npuenv.checks import check_all
from npuenv.core.fact import Evidence, Fact, absent, unknown
from npuenv.core.finding import Status
from npuenv.core.messages import LANGUAGES, say
from npuenv.facts.python import Import
from tests.support.changes import HEALTHY, Change, both, find, packages, part, put

HCCL = "ImportError: libhccl.so: cannot open shared object file: No such file or directory"


def fails(module: str, *errors: str) -> Change:
    """One of the modules fails at import, with these errors from the outermost to the innermost."""
    found = Import(module, False, "", errors, "")
    if module in ("torch", "torch_npu"):
        return put(**{f"import_{module}": found})
    return lambda facts: put(imports={**(facts.python.imports.value or {}), module: found})(facts)


CASES: list[tuple[str, Change, Status, str]] = [
    ("python.framework-parts", packages(transformers=None), Status.FAIL, "vllm-ascend cannot start"),
    ("python.framework-parts", packages(verl="0.7.0", hydra_core=None, ray=None), Status.FAIL, "ray, hydra-core"),
    ("python.framework-parts", packages(verl="0.7.0"), Status.OK, "verl"),
    ("python.framework-parts", packages(vllm_ascend=None), Status.SKIP, "no known"),
    ("python.vllm-pair", packages(vllm_ascend=None), Status.FAIL, "without vllm-ascend"),
    ("python.vllm-pair", packages(vllm_ascend=None, sglang="0.5.5"), Status.SKIP, "not both"),
    ("python.vllm-pair", packages(vllm_ascend=None, torch_npu=None), Status.SKIP, "not both"),
    ("python.vllm-pair", packages(vllm=None), Status.FAIL, "without vllm"),
    ("python.limits", packages(vllm="0.11.0+empty", transformers="5.3.0"), Status.FAIL, "transformers<5"),
    ("python.limits", packages(vllm="0.11.0+empty", transformers="4.57.6"), Status.OK, "none"),
    (
        "python.ray-imports",
        both(packages(rpds_py="0.30.0"), fails("ray", "ModuleNotFoundError: No module named 'rpds.rpds'")),
        Status.FAIL,
        "rpds is installed",
    ),
    (
        "python.verl-imports",
        both(packages(verl="0.7.0", hydra_core=None), fails("verl", "ModuleNotFoundError: No module named 'hydra'")),
        Status.SKIP,
        "python.framework-parts",
    ),
    (
        "python.torch-imports",
        both(
            fails("torch", "RuntimeError: Failed to load the backend extension: torch_npu.", HCCL),
            fails("torch_npu", HCCL),
        ),
        Status.SKIP,
        "python.torch-npu-imports",
    ),
    (
        "python.torch-imports",
        fails("torch", "RuntimeError: Failed to load the backend extension: torch_npu.", HCCL),
        Status.FAIL,
        "libhccl.so",
    ),
    (
        "python.torch-npu-imports",
        both(fails("torch", HCCL), fails("torch_npu", HCCL)),
        Status.SKIP,
        "python.torch-imports",
    ),
]


@pytest.mark.parametrize(("check", "change", "status", "words"), CASES)
def test_one_change_gives_the_expected_finding_with_a_cure(
    check: str, change: Change, status: Status, words: str
) -> None:
    finding = find(change(HEALTHY), check)
    assert finding.status is status, (finding.says, finding.evidence)
    assert words in say(finding.says)
    if status is Status.FAIL:
        assert finding.evidence and finding.fix is not None
        assert all(say(finding.fix.says, lang) for lang in LANGUAGES)


def test_what_rests_on_a_torch_that_hangs_is_not_said_again() -> None:
    hung: Fact[Any] = unknown(Evidence("/opt/env/bin/python -c 'import torch'", "timed out"))
    untried: Fact[Any] = absent(Evidence("/opt/env/bin/python -c 'import torch'", "nothing that rests on it was tried"))
    group = dataclasses.replace(HEALTHY.python, import_torch=hung, import_torch_npu=untried, imports=untried)
    found = {item.check: item for item in check_all(dataclasses.replace(HEALTHY, python=group), level=1)}
    assert found["python.torch-imports"].status is Status.UNKNOWN
    for check in ("python.torch-npu-imports", "python.vllm-imports", "python.transformers-imports"):
        assert found[check].status is Status.SKIP
        assert found[check].says.args["cause"] == "python.torch-imports"


def test_parts_that_lack_are_named_by_one_check_and_come_in_the_versions_of_the_published_stack() -> None:
    change = both(
        packages(verl="0.7.1", tensordict=None), part("packages", requires={"verl": ("tensordict>=0.8", "codetiming")})
    )
    findings = {item.check: item for item in check_all(change(HEALTHY), framework="verl", level=2)}
    assert findings["python.requirements"].status is Status.OK
    cure = findings["python.framework-parts"].fix
    assert cure is not None and cure.commands[0][-1].startswith("tensordict==")


def test_an_environment_that_nothing_was_put_into_is_not_called_incomplete() -> None:
    bare = part("interpreter", distributions={"pip": "25.0"})
    for framework in ("verl", "roll", "vllm-ascend", "cpu"):
        finding = find(bare(HEALTHY), "python.framework-parts", framework=framework)
        assert finding.status is Status.SKIP and framework in say(finding.says)


def test_without_cards_the_python_is_measured_by_torch_and_not_by_torch_npu() -> None:
    old, new = (
        find(part("interpreter", version=text)(HEALTHY), "python.version", framework="cpu")
        for text in ("3.9.18", "3.14.0")
    )
    assert old.status is Status.FAIL and "torch_npu" not in say(old.says)
    assert new.status is Status.OK


@pytest.mark.parametrize(
    ("framework", "status"), [("verl", Status.UNKNOWN), ("roll", Status.OK), ("vllm-ascend", Status.OK)]
)
def test_a_framework_that_is_named_and_not_installed_is_not_called_ready(framework: str, status: Status) -> None:
    parts = dict.fromkeys(("ray", "tensordict", "transformers", "datasets", "hydra_core", "codetiming"), "1.0")
    finding = find(packages(verl=None, **parts)(HEALTHY), "python.framework-parts", framework=framework)
    assert finding.status is status
    if framework != "vllm-ascend":
        assert finding.says.key == "check_python.parts-without"
        assert finding.says.args["framework"] == framework
