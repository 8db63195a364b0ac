"""No text makes the parsers of the machine and of Ray raise or invent a value: cut, mixed, coloured, huge."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core.fact import State
from npuenv.facts.ray import ResourceDemand, parse_status
from tests.facts.families import MACHINE, RAY
from tests.support.scripted_host import ScriptedHost

if TYPE_CHECKING:
    from collections.abc import Callable

FACTS: dict[str, Callable[..., Any]] = {**MACHINE, **RAY}
FILES = (
    "/proc/self/mountinfo",
    "/proc/self/status",
    "/proc/self/limits",
    "/proc/self/cgroup",
    "/proc/meminfo",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/memory.events",
    "/tmp/ray/ray_current_cluster",
    "/etc/os-release",
)
COMMANDS = (
    "id",
    "ps -eo pid,ppid,stat,comm",
    "head -n 32 /proc/cpuinfo",
    "df -kP /tmp",
    "df -iP /tmp",
    "readlink /usr/lib/aarch64-linux-gnu/libstdc++.so.6",
    "readlink /etc/localtime",
    "/opt/env/bin/ray status",
)
PIECES = (
    "uid=0(root) gid=0(root) groups=0(root)\n",
    "    PID    PPID STAT COMMAND\n      1       0 Ss   systemd\n  88120   87990 Zl   VLLMEngineCor\n",
    "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 100 50 50 50% /\n",
    "1 0 8:1 / / rw - ext4 /dev/vda rw\n",
    "Total Usage:\n 0.0/8.0 NPU\n 0B/22.07GiB memory\nPending Demands:\n {'NPU': 1.0} * 8 (PACK): 1+ pending tasks\n",
    "Max open files            1024                 524288               files\n",
    "CapEff:\t00000000a80425fb\nSeccomp:\t2\n",
    "MemTotal: 100 kB\n0::/a/b\n11:memory:/x\n9223372036854771712\noom_kill 3\n",
)
LIMITS = settings(deadline=None)
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=60)), max_size=6).map("".join)


def host_that_says(text: str) -> ScriptedHost:
    host = ScriptedHost(variables={"HOME": "/root", "LANG": text.split("\n")[0][:20] or "C"})
    for path in FILES:
        host.file(path, text)
    for words in COMMANDS:
        host.fails(words, out=text, code=0)
    return host


@pytest.mark.slow
@LIMITS
@given(texts, st.integers(0, 200))
def test_whatever_is_printed_a_fact_comes_out_and_a_value_only_when_it_is_known(text: str, cut: int) -> None:
    for shape in (text, text[:cut], text.replace("\n", "\r\n"), f"\x1b[31m{text}\x1b[0m"):
        for name, ask in FACTS.items():
            fact = ask(host_that_says(shape))
            assert (fact.value is not None) == (fact.state is State.KNOWN), name
            assert fact.evidence, name


@LIMITS
@given(st.text(max_size=400))
def test_text_without_any_of_the_formats_gives_no_account_table_or_status(text: str) -> None:
    host = host_that_says(text)
    for name in ("account", "processes", "mounts", "folder", "processor"):
        assert FACTS[name](host).state is not State.KNOWN or any(char.isdigit() for char in text), name
    assert parse_status(text) is None or "/" in text


@pytest.mark.parametrize("name", sorted({"mounts", "processes", "limits", "memory_of_machine", "ray_status", "cgroup"}))
@pytest.mark.slow
@pytest.mark.one_in(6)
def test_ten_megabytes_of_noise_are_read_in_little_time(name: str) -> None:
    noise = "x 1/2 {a: [ - 3 oom_kill 4 Max y\n" * 300_000
    begun = time.process_time()  # whatever else the machine does meanwhile
    fact = FACTS[name](host_that_says(noise))
    assert time.process_time() - begun < 20.0  # about one is usual
    assert (fact.value is not None) == (fact.state is State.KNOWN)


@LIMITS
@given(st.permutations([("NPU", 1.0), ("CPU", 3.0), ("memory", 2.5)]), st.integers(1, 64))
def test_a_demand_reads_the_same_in_any_order_of_its_names(names: list[tuple[str, float]], bundles: int) -> None:
    words = ", ".join(f"'{name}': {number}" for name, number in names)
    line = f" {{{words}}} * {bundles} (STRICT_PACK): 1+ pending placement groups"
    status = parse_status(f"Resources\nTotal Usage:\n 0.0/8.0 NPU\nPending Demands:\n{line}\n")
    assert status is not None
    (demand,) = status.demands
    assert demand.bundles == (ResourceDemand((("CPU", 3.0), ("NPU", 1.0), ("memory", 2.5)), bundles),)
    assert (demand.how, demand.of("CPU"), demand.of("GPU")) == ("STRICT_PACK", 3.0 * bundles, 0.0)


def test_every_transcript_of_ray_has_a_case_with_its_text() -> None:
    folder = Path(__file__).parents[2].parent / "shared" / "transcripts" / "ray"
    if not folder.is_dir():
        pytest.skip("the transcripts are not here")
    cases = {
        path.stem: path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "cases/ray_status").iterdir()
    }
    for path in folder.iterdir():
        case = cases[path.stem.removeprefix("status_")]
        assert all(line in case for line in path.read_text(encoding="utf-8").splitlines())
