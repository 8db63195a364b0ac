"""What real machines printed when something failed, and whole environment reports: what is made of them.

The texts lie beside this repository, with their provenance. A cause below 0.65 is told as a possible one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from npuenv.diagnose import Diagnosis, Verdict, diagnose
from npuenv.host.report import read_paste

TEXTS = Path(__file__).parents[2].parent / "shared" / "transcripts"
pytestmark = pytest.mark.skipif(not TEXTS.is_dir(), reason="the transcripts lie beside this repository, not in it")

# The cause that is right, and whether the text alone makes it certain. One code alone decides nothing: `EI0006` of
# 2025 names no reason, so the causes are only candidates there; E39007 can be a process left over or a broken card.
FAILURES = [
    ("507033_E30006_opp", "cann-kernels-wrong", True),
    ("507033_E39007_hdc", "device-busy", False),
    ("507899_EL0004_memory", "memory-oom-config", True),
    ("EE1001_visible_devices_207004", "visible-devices-invalid", True),
    ("EI0001_env_value", "hccl-env-value", True),
    ("EI0002_notify_wait_507048", "hccl-peer-died", True),
    ("EI0006_Communication_Error", "hccl-connect-timeout", False),
    ("EI0006_old_OPS", "hccl-connect-timeout", False),
    ("EI0013_cqe", "hccl-link-down", True),
    ("EJ0001_hccp", "device-busy", True),
    ("container_no_device_87_507899", "device-busy", True),
    ("import_libascend_hal", "device-not-mounted", True),
    ("plog_link_error_table", "hccl-connect-timeout", False),
    ("plog_tls_inconsistent_EI0016", "hccl-tls-mismatch", True),
]
# What a whole report says of its machine.
REPORTS: dict[str, dict[str, str | None]] = {
    "vllm_ascend_A3_cann8.3.RC1": {
        "torch": "2.7.1", "torch-npu": "2.7.1", "cann": "8.3.RC1", "driver": "25.3.rc1", "generation": "a3",
        "python": "3.11", "gcc": "13.3.0",
    },
    "vllm_ascend_head_910B_cann8.5": {
        "torch": "2.9.0+cpu", "python": "3.11", "gcc": "11.4.0", "cann": None,
    },
}  # fmt: skip


def diagnosed(path: Path) -> Diagnosis:
    return diagnose(read_paste(path.read_bytes()))


def test_no_failure_is_left_out() -> None:
    assert {path.stem for path in (TEXTS / "errors").iterdir()} == {name for name, *_ in FAILURES} | {"warn_padding32"}


@pytest.mark.parametrize(("name", "cause", "is_certain"), FAILURES, ids=[name for name, *_ in FAILURES])
def test_a_failure_is_traced_to_its_cause(name: str, cause: str, is_certain: bool) -> None:
    found = diagnosed(TEXTS / "errors" / f"{name}.txt")
    assert found.causes[0].id == cause
    assert (found.causes[0].confidence >= 0.65) is is_certain


def test_a_harmless_warning_is_told_as_one() -> None:
    found = diagnosed(TEXTS / "errors" / "warn_padding32.txt")
    assert (found.causes, [item.id for item in found.observations]) == ((), ["padding-32"])


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_of_an_environment_is_read_and_blames_nothing(name: str) -> None:
    found = diagnosed(TEXTS / "collect_env" / f"{name}.txt")
    assert (found.verdict is Verdict.CAUSE, found.causes) == (False, ())
    facts = found.facts
    values: dict[str, str | None] = {key: seen.value for key, seen in facts.packages.items()}
    for key in ("cann", "driver", "generation", "python", "gcc"):
        seen = getattr(facts, key)
        values[key] = seen.value if seen else None
    assert {key: values.get(key) for key in REPORTS[name]} == REPORTS[name]
