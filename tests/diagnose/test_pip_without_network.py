"""What pip says where no index answers is about the network, not about which index was configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis

RETRY = (
    "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by '{}': /simple/torch-npu/"
)
NAME = (
    "NewConnectionError('<HTTPSConnection>: Failed to establish a new connection: [Errno -3] Temporary failure in name "
    "resolution')"
)
CERTIFICATE = "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))"
SLOW = "ConnectTimeoutError(<HTTPSConnection>, 'Connection to index.invalid timed out. (connect timeout=15)')"
PROXY = "ProxyError('Cannot connect to proxy.', NewConnectionError('[Errno 111] Connection refused'))"
NONE = "ERROR: Could not find a version that satisfies the requirement torch-npu==2.8.0 (from versions: none)"
NO_MATCH = "ERROR: No matching distribution found for torch-npu==2.8.0"
SOME = NONE.replace("none", "2.1.0, 2.6.0")


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        (NAME, "network-unreachable"),
        (CERTIFICATE, "network-unreachable"),
        (SLOW, "network-unreachable"),
        (PROXY, "proxy-unreachable"),
    ],
)
def test_no_index_answers(broken: str, cause: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed("\n".join((*[RETRY.format(broken)] * 3, NONE, NO_MATCH)))
    assert [each.id for each in found.causes] == [cause]


@pytest.mark.parametrize("end", [NONE, SOME])
def test_an_index_that_answers_and_has_none(end: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed(f"{end}\n{NO_MATCH}").causes[0]
    assert found.id == "pip-index"
    assert [argv[0] for argv in found.commands] == ["export"] and found.commands[0][1].endswith("'")  # one quoted value


def test_a_connection_that_was_mended_does_not_count(diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(f"{RETRY.format(SLOW)}\n{SOME}\n{NO_MATCH}").causes[0].id == "pip-index"


@pytest.mark.parametrize(("python", "cause"), [("3.13", "python-version"), ("3.11", "pip-index")])
def test_a_release_without_a_wheel_for_this_python(
    python: str, cause: str, diagnosed: Callable[[str], Diagnosis]
) -> None:
    found = diagnosed(f"$ python -V\nPython {python}.1\n$ pip install torch-npu==2.8.0\n{SOME}\n{NO_MATCH}")
    assert found.causes[0].id == cause
