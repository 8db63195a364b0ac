"""Signs from containers: what a `docker run` line or a pod mounts, gives and allows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.diagnose.search import named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.diagnose.search import Text
    from npuenv.diagnose.types import DockerRun, ReportFacts
    from npuenv.host.report import PasteLine

Sign = tuple[str, "PasteLine"]

_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_DRIVER = "/usr/local/Ascend/driver"
_FEW_RIGHTS = ("runAsNonRoot: true", "runAsUser: 1", "CapEff: 0000000000000000", "drop: *ALL", "cap-drop*all")


def container_signs(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """Name of a sign and the line that shows it."""
    for judge in (_run_line, _rights):
        yield from judge(facts, text)


def _run_line(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    run = facts.docker
    if run is not None:
        yield "docker-run", run.line
        yield from _mounts(run, text)
        if "privileged" in run.options:
            yield "docker-privileged", run.line
        user = run.options.get("user", "")
        if user and not user.startswith(("0", "root")):
            yield "docker-user", run.line
    yield from named(text, "few-rights", _FEW_RIGHTS)


def _mounts(run: DockerRun, text: Text) -> Iterator[Sign]:
    is_asked = "ASCEND_VISIBLE_DEVICES" in run.environ or "ASCEND_RT_VISIBLE_DEVICES" in run.environ
    driver = [path for path in run.mounts if path.startswith("/usr/local/Ascend") or path in ("/usr/local", "/usr")]
    names_nothing = not run.devices and not driver and not {"runtime", "privileged", "gpus"} & set(run.options)
    if is_asked and names_nothing:
        yield "docker-variable-only", run.line
    by_runtime = run.options.get("runtime") == "ascend" or "ASCEND_VISIBLE_DEVICES" in run.environ
    has_cards = "privileged" in run.options or any(re.search(r"/dev/davinci\d|\$", each) for each in run.devices)
    if by_runtime:
        return
    if not driver and not any("$" in path for path in run.mounts):
        yield "docker-no-driver", run.line
    whole = any(path in (_DRIVER, "/usr/local/Ascend", "/usr/local", "/usr") for path in driver)
    if driver and not whole and not {f"{_DRIVER}/lib64", f"{_DRIVER}/version.info"} <= set(driver):
        yield "docker-driver-partial", run.line
    if driver and not {"/etc/ascend_install.info", "/etc"} & set(run.mounts):
        yield "docker-no-install-info", run.line
    if driver and not {"/usr/local/dcmi", "/usr/local", "/usr"} & set(run.mounts):
        yield "docker-no-dcmi", run.line
    managers = [each for each in _MANAGERS if each not in run.devices]
    if "privileged" not in run.options and managers:
        yield "docker-device-missing", run.line
    if not has_cards:
        yield "docker-no-card", run.line
    if driver and has_cards and ("privileged" in run.options or not managers):
        yield "docker-complete", run.line


_CLOSED_NODE = re.compile(r"/dev/(?:davinci|devmm_svm|hisi_hdc)")


def _rights(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """Device nodes that only their owner and group may open, and a user that is in no such group."""
    for line in text.with_any(("/dev/davinci", "/dev/devmm_svm", "/dev/hisi_hdc")):
        is_closed = re.search(r"crw-(?:rw-|r--|---)---|\b06?[46]0\b|\b6[46]0\b", line.text)
        if is_closed and _CLOSED_NODE.search(line.text):
            yield "device-nodes-closed", line
    for line in text.all("uid="):
        user = re.search(r"\buid=([1-9]\d*)", line.text)
        if user and user.group(1) != "1000" and "HwHiAiUser" not in line.text:
            yield "outside-group", line
