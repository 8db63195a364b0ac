"""The session's variables, one value at a time: what each check finds, and with which words."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.checks import CHECKS
from npuenv.checks.session.variables import misread
from npuenv.core.fact import Evidence, absent, known
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.facts.cann import Named
from npuenv.host.redact import Redactor
from npuenv.matrix import load_matrix
from tests.support.changes import HEALTHY, both, find, lost, packages, part, put, unread, variables

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts
    from npuenv.matrix.rows import Variable
    from tests.support.changes import Change

ALLOC = "PYTORCH_NPU_ALLOC_CONF"
NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
OK, WARN, FAIL, SKIP = Status.OK, Status.WARN, Status.FAIL, Status.SKIP
ROWS = {row.name: row for row in load_matrix().variables}


def alloc(text: str) -> Change:
    return both(variables(PYTORCH_NPU_ALLOC_CONF=text), packages(vllm_ascend=None, vllm=None))


def of_chip(name: str) -> Change:
    def change(facts: Facts) -> Facts:
        assert facts.npu.smi.value is not None
        return part("smi", cards=tuple(dataclasses.replace(card, name=name) for card in facts.npu.smi.value.cards))(
            facts
        )

    return change


def on_the_host(facts: Facts) -> Facts:
    machine = dataclasses.replace(facts.machine, container=absent(Evidence("/proc/1/cgroup", "0::/init.scope")))
    return dataclasses.replace(facts, machine=machine)


def in_docker(facts: Facts) -> Facts:
    machine = dataclasses.replace(facts.machine, container=known("docker", Evidence("/proc/1/cgroup", "/docker/1")))
    return dataclasses.replace(facts, machine=machine)


def files(variable: str, *, is_there: bool = True, is_link: bool = False) -> Change:
    path = f"/data/{variable.lower()}"
    return both(variables(**{variable: path}), put(named_files=(Named(variable, path, is_there, is_link),)))


CASES: list[tuple[str, Change, Status, str]] = [
    ("session.allocator", variables(PYTORCH_NPU_ALLOC_CONF=None), OK, "not set"),
    ("session.allocator", alloc("expandable_segments:True,base_addr_aligned_kb:16"), OK, ""),
    ("session.allocator", alloc("max_split_size_mb:32,garbage_collection_threshold:0.6"), OK, ""),
    ("session.allocator", alloc("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"), OK, ""),
    ("session.allocator", alloc("page_size:1g"), OK, ""),
    ("session.allocator", alloc("expandable_segments:False,max_split_size_mb:32"), OK, ""),
    ("session.allocator", alloc("expandable_segments:True,segment_size_mb:600"), FAIL, "20..512"),
    ("session.allocator", alloc("max_split_size_mb:20"), FAIL, "> 20"),
    ("session.allocator", alloc("garbage_collection_threshold:1.0"), FAIL, "0.0 < x < 1.0"),
    ("session.allocator", alloc("expandable_segments:yes"), FAIL, "True, False"),
    ("session.allocator", alloc("expandable_segments:True,garbage_collection_threshold:0.8"), FAIL, "exclusive"),
    ("session.allocator", alloc("pin_memory_expandable_segments:True,pinned_mem_register:True"), FAIL, "exclusive"),
    ("session.allocator", alloc("expandable_segments:True;max_split_size_mb:64"), FAIL, ""),
    ("session.allocator", alloc("max_split_size:64"), WARN, "max_split_size"),
    (
        "session.allocator-twice",
        both(
            variables(PYTORCH_ALLOC_CONF="page_size:1g", PYTORCH_NPU_ALLOC_CONF="page_size:1g"),
            packages(torch="2.10.0"),
        ),
        FAIL,
        "an error",
    ),
    (
        "session.allocator-twice",
        both(
            variables(PYTORCH_ALLOC_CONF="page_size:1g", PYTORCH_NPU_ALLOC_CONF="page_size:1g"),
            packages(torch="2.8.0+cpu"),
        ),
        OK,
        "2.8.0",
    ),
    (
        "session.allocator-twice",
        both(variables(PYTORCH_ALLOC_CONF="page_size:1g"), packages(torch="2.8.0+cpu")),
        WARN,
        "2.8.0",
    ),
    ("session.allocator-twice", both(variables(PYTORCH_ALLOC_CONF="a:1"), packages(torch="2.10.0")), OK, "at most"),
    ("session.task-queue", variables(TASK_QUEUE_ENABLE="3"), FAIL, "not one of"),
    ("session.task-queue", variables(TASK_QUEUE_ENABLE="0"), OK, ""),
    (
        "session.launch-blocking",
        both(variables(ASCEND_LAUNCH_BLOCKING="1"), packages(vllm_ascend=None)),
        WARN,
        "synchronously",
    ),
    (
        "session.launch-blocking",
        both(variables(ASCEND_LAUNCH_BLOCKING="1"), packages(vllm_ascend="0.11.0")),
        FAIL,
        "graphs",
    ),
    ("session.launch-blocking", both(variables(ASCEND_LAUNCH_BLOCKING="1"), packages(vllm_ascend="0.9.1")), WARN, ""),
    ("session.launch-blocking", variables(ASCEND_LAUNCH_BLOCKING="0"), OK, ""),
    ("session.cpu-affinity", variables(CPU_AFFINITY_CONF="2"), OK, ""),
    ("session.cpu-affinity", variables(CPU_AFFINITY_CONF="1,npu0:0-1,npu1:2-5,npu1:7-8,npu3:9-9"), OK, ""),
    ("session.cpu-affinity", variables(CPU_AFFINITY_CONF="2,force:1,npu0:0-3"), OK, ""),
    ("session.cpu-affinity", variables(CPU_AFFINITY_CONF="1,npu_affine:1"), OK, ""),
    ("session.cpu-affinity", both(of_chip("Ascend910"), variables(CPU_AFFINITY_CONF="1,npu_affine:1")), WARN, "A2"),
    ("session.cpu-affinity", variables(CPU_AFFINITY_CONF="3"), WARN, "`3`"),
    ("session.cpu-affinity", variables(CPU_AFFINITY_CONF="1,npu0:5-2"), WARN, "npu0:5-2"),
    ("session.cpu-affinity", variables(CPU_AFFINITY_CONF="npu0:0-1"), WARN, "npu0:0-1"),
    ("session.saturation", variables(INF_NAN_MODE_ENABLE="0"), FAIL, "rejected"),
    ("session.saturation", variables(INF_NAN_MODE_ENABLE="0", INF_NAN_MODE_FORCE_DISABLE="1"), WARN, "forced"),
    ("session.saturation", both(of_chip("310P3"), variables(INF_NAN_MODE_ENABLE="0")), OK, ""),
    ("session.autoload", variables(TORCH_DEVICE_BACKEND_AUTOLOAD="0"), WARN, "no npu"),
    ("session.autoload", both(variables(TORCH_DEVICE_BACKEND_AUTOLOAD="0"), packages(torch_npu=None)), OK, ""),
    ("session.hccl", variables(HCCL_RDMA_SL="1000"), FAIL, "0..7"),
    ("session.torch-npu", variables(HCCL_RDMA_SL="1000"), OK, ""),  # no variable of torch_npu
    ("session.hccl", variables(HCCL_RDMA_TC="130"), FAIL, "multiple of 4"),
    ("session.hccl", variables(HCCL_RDMA_TC="132"), OK, ""),
    ("session.hccl", variables(HCCL_RDMA_TIMEOUT="22"), FAIL, "5..20"),
    ("session.hccl", both(of_chip("310P3"), variables(HCCL_RDMA_TIMEOUT="22")), OK, ""),
    ("session.hccl", variables(HCCL_BUFFSIZE="0"), FAIL, "1..65536"),
    ("session.hccl", variables(HCCL_DETERMINISTIC="on"), FAIL, "strict"),
    ("session.hccl", variables(HCCL_DETERMINISTIC="True"), OK, ""),
    ("session.hccl", variables(HCCL_IF_IP="10.10.10"), FAIL, "192.0.2.10"),
    ("session.hccl", variables(HCCL_IF_IP="fe80::1"), OK, ""),
    ("session.hccl", variables(HCCL_NPU_SOCKET_PORT_RANGE="61000,61050-61100"), OK, ""),
    ("session.hccl", variables(HCCL_NPU_SOCKET_PORT_RANGE="61100-61000"), FAIL, "auto"),
    ("session.hccl", variables(HCCL_HOST_SOCKET_PORT_RANGE="70000"), FAIL, "auto"),
    ("session.hccl", variables(HCCL_ALGO="level0:NA;level1:NHR"), OK, ""),
    ("session.hccl", variables(HCCL_ALGO="allreduce=level0:NA;level1:ring/allgather=level0:NA;level1:H-D_R"), OK, ""),
    ("session.hccl", variables(HCCL_ALGO="ring"), FAIL, "level0:NA"),
    ("session.hccl", variables(HCCL_OP_RETRY_ENABLE="L1:0, L2:1"), OK, ""),
    ("session.hccl", variables(HCCL_OP_RETRY_ENABLE="1"), FAIL, "L1:0"),
    ("session.hccl", variables(HCCL_OP_EXPANSION_MODE="AIV", HCCL_EXEC_TIMEOUT="3600"), WARN, "1091"),
    ("session.hccl", variables(HCCL_OP_EXPANSION_MODE="AIV", HCCL_EXEC_TIMEOUT="0.5"), OK, ""),
    ("session.hccl-mode", variables(HCCL_OP_EXPANSION_MODE="CCU_MS"), WARN, "the default"),
    ("session.hccl-mode", both(of_chip("Ascend950PR"), variables(HCCL_OP_EXPANSION_MODE="HOST")), FAIL, "CCU_SCHED"),
    ("session.hccl-mode", variables(HCCL_OP_EXPANSION_MODE="HOST_TS"), OK, ""),
    ("session.hccl-mode", both(of_chip("Ascend910"), variables(HCCL_OP_EXPANSION_MODE="HOST")), WARN, "AI_CPU"),
    ("session.hccl-links", variables(HCCL_INTRA_PCIE_ENABLE="1", HCCL_INTRA_ROCE_ENABLE="1"), WARN, "not a supported"),
    ("session.hccl-links", variables(HCCL_INTRA_PCIE_ENABLE="0"), WARN, "ROCE_ENABLE=-"),
    ("session.hccl-links", variables(HCCL_INTRA_PCIE_ENABLE="1", HCCL_INTRA_ROCE_ENABLE="0"), OK, ""),
    ("session.event-timeout", variables(HCCL_EVENT_TIMEOUT="1800", HCCL_EXEC_TIMEOUT="1836"), WARN, "1836"),
    ("session.event-timeout", variables(HCCL_EVENT_TIMEOUT="3700", HCCL_EXEC_TIMEOUT="3600"), OK, ""),
    ("session.event-timeout", variables(HCCL_EVENT_TIMEOUT="0", HCCL_EXEC_TIMEOUT="3600"), OK, ""),
    ("session.hccl-pair", variables(HCCL_OP_EXPANSION_MODE="AIV", HCCL_DETERMINISTIC="true"), WARN, "precedence"),
    ("session.hccl-pair", variables(HCCL_OP_EXPANSION_MODE="AIV", HCCL_OP_RETRY_ENABLE="L1:1,L2:0"), WARN, "AI_CPU"),
    ("session.hccl-pair", variables(HCCL_DETERMINISTIC="strict", HCCL_INTER_HCCS_DISABLE="TRUE"), FAIL, "strict"),
    ("session.hccl-pair", variables(HCCL_OP_EXPANSION_MODE="AIV", HCCL_DETERMINISTIC="false"), OK, ""),
    ("session.whitelist", variables(HCCL_WHITELIST_DISABLE="0"), FAIL, "HCCL_WHITELIST_FILE"),
    ("session.whitelist", variables(HCCL_WHITELIST_DISABLE="0", HCCL_WHITELIST_FILE="/etc/white.json"), OK, ""),
    ("session.nz", both(variables(VLLM_ASCEND_ENABLE_NZ="1"), packages(verl="0.7.0")), FAIL, "FRACTAL_NZ"),
    ("session.nz", both(variables(VLLM_ASCEND_ENABLE_NZ="1"), packages(verl=None, roll=None)), OK, ""),
    ("session.nz", both(variables(VLLM_ASCEND_ENABLE_NZ="0"), packages(verl="0.7.0")), OK, ""),
    # From 0.27.1rc1 on the variable has no reader: session.vllm-ascend says so.
    ("session.nz", both(variables(VLLM_ASCEND_ENABLE_NZ="1"), packages(verl="0.7.0", vllm_ascend="0.28.0rc1")), OK, ""),
    (
        "session.vllm-engine",
        both(variables(VLLM_USE_V1="0"), packages(vllm_ascend="0.11.0", vllm="0.11.0")),
        FAIL,
        "V1 engine",
    ),
    ("session.vllm-engine", both(variables(VLLM_USE_V1="0"), packages(vllm_ascend="0.7.3")), OK, ""),
    (
        "session.vllm-engine",
        both(variables(VLLM_USE_V1="0"), packages(vllm_ascend="0.13.0", vllm="0.13.0+empty")),
        OK,
        "",
    ),
    (
        "session.vllm-fork",
        both(variables(VLLM_WORKER_MULTIPROC_METHOD="fork"), packages(vllm_ascend="0.11.0")),
        WARN,
        "fork",
    ),
    (
        "session.vllm-fork",
        both(variables(VLLM_WORKER_MULTIPROC_METHOD="thread"), packages(vllm_ascend="0.11.0")),
        FAIL,
        "thread",
    ),
    (
        "session.vllm-fork",
        both(variables(VLLM_WORKER_MULTIPROC_METHOD="spawn"), packages(vllm_ascend="0.11.0")),
        OK,
        "",
    ),
    (
        "session.ray-noset",
        both(variables(**{NOSET: "1", "ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}), packages(verl="0.7.0")),
        FAIL,
        "4,5,6,7",
    ),
    (
        "session.ray-noset",
        both(variables(**{NOSET: "1", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}), packages(verl="0.7.0")),
        OK,
        "",
    ),
    (
        "session.ray-noset",
        both(variables(**{NOSET: "1", "ASCEND_RT_VISIBLE_DEVICES": "4,5"}), packages(verl=None)),
        OK,
        "",
    ),
    ("session.ranks", variables(RANK="2", WORLD_SIZE="2"), FAIL, "not below"),
    ("session.ranks", variables(RANK="head", WORLD_SIZE="2"), FAIL, "head"),
    ("session.ranks", variables(RANK="1", WORLD_SIZE="2"), OK, ""),
    ("session.omp-threads", variables(OMP_NUM_THREADS="auto"), WARN, "auto"),
    ("session.omp-threads", variables(OMP_NUM_THREADS="0"), WARN, "0"),
    ("session.omp-threads", variables(OMP_NUM_THREADS="4,2"), OK, ""),
    ("session.hub", variables(HF_ENDPOINT="hf-mirror.example"), FAIL, "https://"),
    ("session.hub", variables(HF_ENDPOINT="https://hf-mirror.example"), OK, ""),
    ("session.docker-devices", both(on_the_host, variables(ASCEND_VISIBLE_DEVICES="0-3")), WARN, "container runtime"),
    ("session.docker-devices", both(in_docker, variables(ASCEND_VISIBLE_DEVICES="0-3")), OK, ""),
    (
        "session.docker-devices",
        both(on_the_host, variables(ASCEND_VISIBLE_DEVICES="0", ASCEND_RT_VISIBLE_DEVICES="0")),
        OK,
        "",
    ),
    ("session.soc-version", variables(SOC_VERSION="ascend910_9391"), WARN, "Atlas A3"),
    ("session.soc-version", variables(SOC_VERSION="Ascend910B1"), OK, ""),
    ("session.soc-version", variables(SOC_VERSION="ascend910b"), OK, ""),
    ("session.soc-version", variables(SOC_VERSION="of-the-future"), OK, ""),
    ("session.soc-version", both(of_chip("Ascend910"), variables(SOC_VERSION="ascend910b1")), WARN, "Atlas A2"),
    ("session.cuda-devices", variables(CUDA_VISIBLE_DEVICES="0,1"), WARN, "not select"),
    ("session.cuda-devices", variables(CUDA_VISIBLE_DEVICES=""), OK, ""),
    ("session.cuda-devices", variables(CUDA_VISIBLE_DEVICES="0", ASCEND_RT_VISIBLE_DEVICES="0"), OK, ""),
    ("session.torch-npu", variables(STREAMS_PER_DEVICE="16"), WARN, "8, 32"),
    ("session.torch-npu", variables(MULTI_STREAM_MEMORY_REUSE="4"), WARN, "0, 1, 2, 3"),
    ("session.torch-npu", variables(ACL_OP_COMPILER_CACHE_MODE="on"), WARN, "enable, disable, force"),
    ("session.torch-npu", variables(COMBINED_ENABLE="2"), WARN, "0, 1"),
    ("session.torch-npu", variables(ASCEND_GLOBAL_LOG_LEVEL="ERROR"), WARN, "0, 1, 2, 3, 4"),
    ("session.torch-npu", variables(MULTI_STREAM_MEMORY_REUSE="3", COMBINED_ENABLE="1", ACL_OP_INIT_MODE="1"), OK, ""),
    ("session.names", variables(HCCL_SOCKET_IFNAMES="eth0"), WARN, "HCCL_SOCKET_IFNAME"),
    ("session.names", variables(ASCEND_RT_VISABLE_DEVICES="0"), WARN, "ASCEND_RT_VISIBLE_DEVICES"),
    ("session.names", variables(HCCL_CONNECTION_TIMEOUT="600"), WARN, "HCCL_CONNECT_TIMEOUT"),
    ("session.names", variables(PYTORCH_NPU_ALLOC_CONFIG="page_size:1g"), WARN, "PYTORCH_NPU_ALLOC_CONF"),
    ("session.names", variables(HCCL_OP_BASE_FFTS_MODE_ENABLE="TRUE", HCCL_RDMA_SL="4", HCCL_RDMA_TC="132"), OK, ""),
    ("session.names", variables(ASCEND_DUMP_PATH="/d", ASCEND_TOTAL_MEMORY_GB="64", ASCEND_BASE="/x"), OK, ""),
    ("session.names", variables(VLLM_ASCEND_ENABLE_FLASHCOMM2="1"), OK, ""),
    (
        "session.vllm-ascend",
        both(variables(VLLM_ASCEND_ENABLE_FLASHCOMM="1"), packages(vllm_ascend="0.11.0")),
        WARN,
        "VLLM_ASCEND_ENABLE_FLASHCOMM",
    ),
    (
        "session.vllm-ascend",
        both(variables(VLLM_ASCEND_ENABLE_PREFETCH_MLP="1"), packages(vllm_ascend="0.18.0")),
        WARN,
        "0.18.0",
    ),
    (
        "session.vllm-ascend",
        both(variables(VLLM_ASCEND_ENABLE_PREFETCH_MLP="1"), packages(vllm_ascend="0.13.0")),
        OK,
        "",
    ),
    ("session.vllm-ascend", both(variables(VLLM_ASCEND_ENABLE_FLASHCOMM1="1"), packages(vllm_ascend="0.13.0")), OK, ""),
    *(
        ("session.vllm-ascend", both(variables(**{name: "0"}), packages(vllm_ascend=version)), status, says)
        for name, version, status, says in (
            ("VLLM_ASCEND_ENABLE_NZ", "0.26.0rc1", OK, ""),
            ("VLLM_ASCEND_ENABLE_NZ", "0.27.1rc1", WARN, "VLLM_ASCEND_ENABLE_NZ"),
            ("VLLM_ASCEND_ENABLE_MLAPO", "0.30.0rc2", WARN, "VLLM_ASCEND_ENABLE_MLAPO"),
            ("VLLM_ASCEND_ENABLE_FLASHCOMM1", "0.30.0rc2", OK, ""),
        )
    ),
    (
        "session.debugging",
        variables(ASCEND_GLOBAL_LOG_LEVEL="0", ASCEND_SLOG_PRINT_TO_STDOUT="1"),
        WARN,
        "ASCEND_GLOBAL_LOG_LEVEL",
    ),
    ("session.debugging", variables(PYTORCH_NO_NPU_MEMORY_CACHING="1"), WARN, "PYTORCH_NO_NPU_MEMORY_CACHING"),
    ("session.debugging", variables(ASCEND_GLOBAL_LOG_LEVEL="3"), OK, ""),
    ("session.preload", files("LD_PRELOAD", is_there=False), WARN, "/data/ld_preload"),
    ("session.preload", files("LD_PRELOAD"), OK, ""),
    ("session.files", files("RANK_TABLE_FILE", is_there=False), WARN, "/data/rank_table_file"),
    ("session.files", files("RANK_TABLE_FILE", is_link=True), FAIL, "symbolic link"),
    ("session.files", files("RANK_TABLE_FILE"), OK, ""),
    ("session.python-path", variables(PYTHONPATH="/opt/old/lib/python3.13/site-packages"), FAIL, "3.13"),
    ("session.python-path", variables(PYTHONHOME="/usr"), FAIL, "PYTHONHOME"),
    ("session.python-path", variables(PYTHONPATH="/workspace/verl:/opt/env/lib/python3.11/site-packages"), OK, ""),
]
ELSEWHERE = {"session.visible-devices", "session.proxy", "session.interface"}
MINE = [check for check in CHECKS if check.id.startswith("session.") and check.id not in ELSEWHERE]


@pytest.mark.parametrize(
    ("check", "change", "status", "words"),
    CASES,
    ids=[f"{number}-{c[0]}-{c[2].value}" for number, c in enumerate(CASES)],
)
def test_one_change_gives_the_expected_finding(check: str, change: Change, status: Status, words: str) -> None:
    finding = find(change(HEALTHY), check)
    assert (finding.status, words in say(finding.says)) == (status, True), (finding.status, say(finding.says))
    if status in (FAIL, WARN):
        assert finding.evidence and finding.source
        assert finding.fix is not None or check == "session.hccl"
    if finding.fix is not None:
        assert say(finding.fix.says) and say(finding.fix.says, "zh") != say(finding.fix.says)
        assert all(command[0] in ("unset", "export") for command in finding.fix.commands)


def test_every_check_has_a_case_that_is_not_fine_and_one_that_is() -> None:
    ids = {check.id for check in MINE}
    assert {case[0] for case in CASES if case[2] in (FAIL, WARN)} == ids
    assert {case[0] for case in CASES if case[2] is OK} == ids


@pytest.mark.parametrize("check", [check for check in MINE if check.reads], ids=lambda check: check.id)
def test_what_could_not_be_read_is_unknown_and_never_fine(check: Any) -> None:
    for name in check.reads:
        assert find(lost(name)(HEALTHY), check.id).status is unread(check.id, name)


# What the published samples and images set; none of it is wrong.
SAMPLES: list[dict[str, str]] = [
    {
        "HCCL_CONNECT_TIMEOUT": "3600",
        "HCCL_EXEC_TIMEOUT": "3600",
        "HCCL_DETERMINISTIC": "false",
        "HCCL_IF_BASE_PORT": "23456",
        "HCCL_SOCKET_IFNAME": "=eth0,endvnic",
        "NPU_MEMORY_FRACTION": "0.96",
        "MULTI_STREAM_MEMORY_REUSE": "1",
        "COMBINED_ENABLE": "1",
        "CPU_AFFINITY_CONF": "2",
        "OMP_NUM_THREADS": "1",
        "VLLM_USE_V1": "1",
        "ACL_OP_COMPILER_CACHE_MODE": "enable",
        "ASCEND_MAX_OP_CACHE_SIZE": "5000",
        "ASCEND_GLOBAL_LOG_LEVEL": "3",
        "WANDB_MODE": "offline",
    },
    {
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "HCCL_INTRA_PCIE_ENABLE": "1",
        "HCCL_INTRA_ROCE_ENABLE": "0",
        "HCCL_BUFFSIZE": "512",
        "HCCL_WHITELIST_DISABLE": "1",
        "HCCL_OP_BASE_FFTS_MODE_ENABLE": "TRUE",
        "OMP_NUM_THREADS": "100",
        "OMP_PROC_BIND": "false",
        "HCCL_NPU_SOCKET_PORT_RANGE": "auto",
        "VLLM_ASCEND_ENABLE_NZ": "0",
    },
]


@pytest.mark.parametrize("sample", SAMPLES, ids=["ROLL", "vllm-ascend"])
def test_the_settings_of_published_samples_are_no_problem(sample: dict[str, str]) -> None:
    changed = variables(**sample)(HEALTHY)
    wrong = {check.id: find(changed, check.id).status for check in MINE}
    wrong["session.hccl-pair"] = OK  # deterministic is off in both
    assert {name for name, status in wrong.items() if status not in (OK, SKIP)} == set()


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.kind != "any"], ids=lambda row: row.name)
def test_every_row_takes_its_own_examples_and_refuses_nonsense(row: Variable) -> None:
    takes = row.values or {
        "number": (str(row.least), str(row.most - row.most % row.multiple)),
        "decimal": (str(row.least), str(row.most)),
        "ports": ("auto", "61000-61050", "1"),
        "address": ("10.0.0.1", "::1"),
    }.get(row.kind, (row.example,))
    assert [value for value in takes if misread(row, value)] == []
    for value in ("nonsense", "-1", "1,,2", "é", "9" * 20):
        assert misread(row, value)


def test_sources_name_a_document_for_each_range() -> None:
    assert [
        row.name
        for row in ROWS.values()
        if row.kind != "any" and "/" not in row.source and "hiascend" not in row.source
    ] == []


OTHERS = ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "RANK_TABLE_FILE", "ASCEND_CUSTOM_OPP_PATH")


def test_every_variable_that_is_read_survives_the_redaction() -> None:
    names = {*ROWS, *OTHERS}
    assert names <= Redactor().environ(dict.fromkeys(names, "1")).keys()
