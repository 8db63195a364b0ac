"""What is read out of a paste before anything is judged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.documents import load_toml
from npuenv.diagnose import read_facts, signs_of
from npuenv.diagnose.text import Text
from npuenv.host.report import read_paste
from npuenv.matrix import load_matrix
from npuenv.matrix.error_patterns import load_error_patterns

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis
    from npuenv.diagnose.types import ReportFacts


SMI = Path(__file__).parents[1] / "facts/cases/smi"


def facts(text: str) -> ReportFacts:
    return read_facts(Text(read_paste(text.encode()).lines), load_matrix())


def signs(text: str) -> set[str]:
    held = Text(read_paste(text.encode()).lines)
    matrix = load_matrix()
    return {*signs_of(read_facts(held, matrix), held, matrix, load_error_patterns())}


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("torch==2.7.1", "torch", "2.7.1"),
        ("[pip3] torch_npu==2.7.1rc1", "torch-npu", "2.7.1rc1"),
        ("[conda] numpy 1.26.4 pypi_0 pypi", "numpy", "1.26.4"),
        ("Package  Version\n-------- -------\nfoo-bar  1.0\n", "foo-bar", "1.0"),
        ("# Name   Version   Build  Channel\ntorch  2.7.1  pypi_0  pypi", "torch", "2.7.1"),
        ("Name: vllm_ascend\nVersion: 0.11.0rc1\nSummary: x", "vllm-ascend", "0.11.0rc1"),
        ("Successfully installed numpy-2.1.0 torch-2.8.0+cu126", "torch", "2.8.0+cu126"),
        ("PyTorch version: 2.7.1+cpu", "torch", "2.7.1+cpu"),
        ("vLLM Ascend Version: 0.11.0rc1 (git sha: abc)", "vllm-ascend", "0.11.0rc1"),
        ("Initializing a V1 LLM engine (v0.11.0) with config: x", "vllm", "0.11.0"),
        ("quay.io/ascend/vllm-ascend:v0.11.0rc1-a3", "vllm-ascend", "0.11.0rc1"),
    ],
)
def test_packages(text: str, name: str, version: str) -> None:
    assert facts(text).packages[name].value == version


@pytest.mark.parametrize(
    "text",
    [
        "pip install torch==2.7.1",
        "$ pip install torch-npu==2.7.1",
        "Collecting torch==2.7.1",
        "ERROR: No matching distribution found for torch==2.7.1",
        "vllm 0.11.0 requires torch==2.7.1, but you have nothing",
    ],
)
def test_what_is_wanted_is_not_installed(text: str) -> None:
    assert "torch" not in facts(text).packages


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("package_name=Ascend-cann-toolkit\nversion=8.1.RC1\n", "8.1.RC1"),
        ("path=/usr/local/Ascend/ascend-toolkit/8.2.RC1/aarch64-linux", "8.2.RC1"),
        ("CANN: 8.0.RC3", "8.0.RC3"),
        ("Ascend-cann-toolkit_8.3.RC1_linux-aarch64.run", "8.3.RC1"),
        ("image: quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11", "8.5.0"),
    ],
)
def test_cann(text: str, version: str) -> None:
    seen = facts(text).cann
    assert seen
    assert seen.value == version


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("npu-smi 24.1.rc2   Version: 24.1.rc2", "driver", "24.1.RC2"),
        ("driver version: 25.2.0", "driver", "25.2.0"),
        ("$ cat /usr/local/Ascend/driver/version.info\nVersion=25.2.0\n", "driver", "25.2.0"),
        ("$ cat /usr/local/Ascend/driver/version.info\nversion=24.1.rc2\n", "driver", "24.1.rc2"),
        ("$ cat /usr/local/Ascend/driver/version.info\nVersion=24.1.rc2\n", "driver", "24.1.rc2"),
        ("Python version: 3.11.9 (main)", "python", "3.11"),
        ("/usr/lib/python3.10/site-packages/torch/__init__.py", "python", "3.10"),
        ("chip: Ascend 910B3", "generation", "a2"),
        ("Atlas 800T A2", "generation", "a2"),
        ("Llama3 server on an Atlas 800T A2", "generation", "a2"),
        ("soc_version: 2203 of the build\nsoc_version: 251", "generation", "a3"),
        ("| 0  310P3  | OK |", "generation", "310p"),
        ("使用v0.23.0rc1-310部署", "generation", "310p"),
        ("image v0.26.0rc1-a3", "generation", "a3"),
        ("error on OrangePi AI PRO", "chip", "310B"),
        ("香橙派AIpro", "chip", "310B"),
    ],
)
def test_machine(text: str, field: str, value: str) -> None:
    seen = getattr(facts(text), field)
    assert seen
    assert seen.value.upper() == value.upper()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("**CANN版本**: 8.0.RC3", {"cann": "8.0.RC3"}),
        ("cann版本8.1.rc1", {"cann": "8.1.RC1"}),
        ("- CANN version: `8.2.RC1.alpha003`", {"cann": "8.2.RC1.alpha003"}),
        ("固件 7.5.0 驱动 25.2.0", {"driver": "25.2.0"}),
        ("NPU驱动：24.1.0", {"driver": "24.1.0"}),
        ("昇腾910B3", {"chip": "910B3", "generation": "a2"}),
        ("python 版本 3.9", {"python": "3.9"}),
        ("gcc version 7.3.0 (GCC)", {"gcc": "7.3.0"}),
        ("torch 2.5.1、torch_npu 2.5.1，vllm 0.7.3", {"torch": "2.5.1", "torch-npu": "2.5.1", "vllm": "0.7.3"}),
        ("- torch & torch-npu==2.5.1", {"torch": "2.5.1", "torch-npu": "2.5.1"}),
        ("vllm-ascend：v0.9.1", {"vllm-ascend": "0.9.1"}),
    ],
)
def test_versions_as_people_write_them(text: str, read: dict[str, str], diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed(text).facts
    seen = {name: found.packages.get(name) or getattr(found, name) for name in read}
    assert {name: each.value for name, each in seen.items() if each} == read


def test_a_docker_line_over_many_lines() -> None:
    run = facts(
        "docker run --rm \\\n --device /dev/davinci0 --device=/dev/davinci_manager \\\n"
        " -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro -e A=b -u 1000 \\\n -it quay.io/a:b bash\nnext\n"
    ).docker
    assert run
    assert run.devices == ("/dev/davinci0", "/dev/davinci_manager")
    assert run.mounts == ("/usr/local/Ascend/driver",)
    assert (run.environ, run.options["user"]) == ({"A": "b"}, "1000")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("EI0006: Getting socket times out.", {"EI0006"}),
        ("error code is 507033", {"507033"}),
        ("dcmi model initialized failed, because the device is used. ret is -8020", {"-8020"}),
        ("[drvRetCode=87]", set()),
        ("open device 0 failed, runtime result = 507899, drvRetCode=87", {"507899", "drv87"}),
        ("$ grep EI0006 log", set()),
    ],
)
def test_codes(text: str, codes: set[str]) -> None:
    assert {*facts(text).codes} >= codes
    assert codes or "EI0006" not in facts(text).codes


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("torch==2.7.1\ntorch-npu==2.5.1", "torch-pair-differs"),
        ("torch==2.7.1\ntorch-npu==2.7.1", "torch-pair-agrees"),
        ("torch==2.8.0+cu128", "torch-cuda-build"),
        ("vllm==0.9.1\nvllm-ascend==0.11.0", "vllm-pair-differs"),
        ("vllm==0.11.0\nvllm-ascend==0.11.0", "vllm-pair-agrees"),
        ("triton==3.2.0\ntriton-ascend==3.2.0", "triton-twice"),
        ("ray==2.50.0\nvllm-ascend==0.11.0", "ray-too-new"),
        ("vllm-ascend==0.11.0rc1\nversion=8.0.RC2", "cann-below-pair"),
        ("vllm-ascend==0.11.0\nnumpy==2.2.0", "numpy2-too-new"),
        ("vllm-ascend==0.11.0rc1.dev0\ntorch==2.8.0\ntorch-npu==2.8.0", "torch-npu-not-the-pair"),
        ("gcc (GCC) 7.3.0", "gcc-old"),
        ("$ ulimit -n\n1024", "nofile-low"),
        ("shm   64M   0   64M   0% /dev/shm", "shm-small"),
        ("uid=65534(nobody) gid=65534(nogroup)", "outside-group"),
        ("crw-rw---- 1 HwHiAiUser HwHiAiUser 236, 0 Nov 1 10:00 /dev/davinci0", "device-nodes-closed"),
        ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", "expandable-segments-on"),
        ("export ASCEND_RT_VISIBLE_DEVICES=3,1", "visible-devices-set"),
        ('  ASCEND_VISIBLE_DEVICES: "0"', "visible-devices-set"),
        ("docker run -e ASCEND_VISIBLE_DEVICES=0 x", "visible-devices-set"),
        ("export ASCEND_HOME_PATH=/usr/local/Ascend/latest", "cann-variables-set"),
        ('declare -x ASCEND_TOOLKIT_HOME="/usr/local/Ascend/latest"', "cann-variables-set"),
        ("  ASCEND_HOME_PATH: ${ROOT}/latest", "cann-variables-set"),
        ("ATB_HOME_PATH=/usr/local/Ascend/nnal/atb", "atb-variables-set"),
        ("vllm==0.11.1\nexport VLLM_VERSION=0.11.0", "vllm-version-override-differs"),
        ("link status: DOWN", "link-down"),
        ("dev_id:0; tls switch[1](0:disable, 1:enable)\ndev_id:1; tls switch[0](0:disable, 1:enable)", "tls-mixed"),
        ("Atlas 800T A3\nimage: quay.io/ascend/vllm-ascend:v0.11.0rc1\n", "image-for-other-chip"),
    ],
)
def test_signs(text: str, sign: str) -> None:
    assert sign in signs(text)


def test_variables_without_a_value_give_no_sign() -> None:
    assert "cann-variables-set" not in signs('export ASCEND_HOME_PATH=""\nMY_ASCEND_HOME_PATH=/x\n')


def test_cards_given_to_a_container_are_not_held_against_those_in_it() -> None:
    table = load_toml(SMI / "info_950PR_25.7.rc1_alarm.toml")["output"]
    given = f"docker run -e ASCEND_VISIBLE_DEVICES=98,99 x\n{table}"
    assert "visible-devices-out-of-range" in signs(given)
    assert "visible-devices-out-of-range" not in signs(f"{given}\nexport ASCEND_RT_VISIBLE_DEVICES=0,1\n")


def test_a_table_of_cards_gives_signs() -> None:
    table = load_toml(SMI / "info_950PR_25.7.rc1_alarm.toml")["output"]
    assert "health-alarm" in signs(table)


def test_a_card_in_use_without_a_process_is_held_by_something_else() -> None:
    table = load_toml(SMI / "info_910B3_25.0.rc1.b010_busy.toml")["output"]
    assert "card-held-by-nobody-seen" not in signs(table)
    none = re.sub(r"(?m)^\| (\d) +0 +\| \d{7} .*", r"| No running processes found in NPU \1       |", table)
    assert "card-held-by-nobody-seen" in signs(none)


def test_a_list_of_packages_ends_at_a_line_that_is_no_row() -> None:
    assert {*facts("Package  Version\nfoo  1.0\n(cut here)\nstep  2.0\n").packages} == {"foo"}


def test_a_version_with_a_sentence_behind_it_is_no_pip_show() -> None:
    assert "torch" not in facts("Name: torch\nVersion: 2.7.1 of last week was fine\n").packages


@pytest.mark.parametrize("text", ["torch==2.7.1", "vllm==0.11.0", "version=8.1.RC1", "torch==2.x\ntorch-npu==9"])
def test_half_of_a_pair_says_nothing(text: str) -> None:
    assert not {sign for sign in signs(text) if "pair" in sign or "differs" in sign}


@pytest.mark.parametrize(
    ("text", "sign", "is_there"),
    [
        ("grep -c ERROR: prints 0\n", "failed", False),
        ("state=NOT_FAILED\n", "failed", False),
        ("ModuleNotFoundError: No module named 'torch'\n", "submodule-missing", False),
        ("Successfully installed a-1.0\n", "installed", True),
        ("Successfully installed a-1.0\nImportError: x\n", "installed", False),
        ("vllm==0.7.2\nvllm-ascend==0.7.1rc2.dev3\n", "vllm-pair-doubtful", True),
        ("vllm==0.11.0.1\nvllm-ascend==0.11.0rc1\n", "vllm-pair-agrees", True),
        ("vllm==0.11.1\nvllm-ascend==0.11.0rc1\n", "vllm-pair-agrees", False),
        ("vllm==0.7.1\nvllm-ascend==0.7.1rc2.dev3\n", "vllm-pair-doubtful", False),
        ("{'env_vars': {'PYTORCH_NPU_ALLOC_CONF': 'expandable_segments:True'}}\n", "expandable-segments-on", True),
        ("uid=0(root) gid=0(root)\n", "non-root", False),
        ("uid=1000(me) gid=1000(me)\n", "non-root", True),
        ("pass uid=me\n", "non-root", False),
        ("Usage:\n 0.0/32.0 CPU\n 0.0/8.0 GPU\n", "ray-gpu-only", True),
        ("After installing verl, torch 2.7.1 was replaced by 2.8.0.", "torch-replaced", True),
        ("安装vllm 0.11.0时会卸载torch2.7.1, 安装2.8.0", "torch-replaced", True),
        ("pip install --upgrade torch==2.7.1", "torch-replaced", False),
        ("pip uninstall torch, then pip install torch 2.7.1", "torch-replaced", False),
        ("After the install torchvision 0.20 was replaced.", "torch-replaced", False),
        ("torch-npu==2.7.1.dev20250724 无法通过pip下载", "version-not-found", True),
        ("torch_npu 2.7.1 无法识别芯片", "version-not-found", False),
        ("vllm-ascend 0.18.0 无此问题", "another-release-works", True),
        ("The image x:latest-npu works as expected.", "another-release-works", True),
        ("vllm-ascend 0.18.0 不正常", "another-release-works", False),
        ("vllm-ascend==0.22.1rc1\nversion=8.2.RC1", "cann-far-below-plugin", True),
        ("vllm-ascend==0.22.1rc1\nversion=8.5.0", "cann-far-below-plugin", False),
        ("vllm-ascend==0.13.0\nmodel type `qwen3_5_moe` is not known", "model-newer-than-release", True),
        ("vllm-ascend==0.13.0\nmodel type `qwen3` is not known", "model-newer-than-release", False),
        ("Atlas 800 (Model 9000), Ascend 910B", "chip-910", True),
        ("03:00.0 Processing accelerators [1200]: Huawei Device [19e5:d802]", "chip-910", False),
        ("Usage:\n 0.0/32.0 CPU\n 0.0/8.0 GPU\n 0.0/8.0 NPU\n", "ray-gpu-only", False),
    ],
)
def test_signs_of_mounts_and_of_what_failed(text: str, sign: str, is_there: bool) -> None:
    assert (sign in signs(text)) is is_there
