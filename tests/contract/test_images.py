"""How a published Dockerfile is read, and the table that is made from what it says."""

from __future__ import annotations

import dataclasses

import pytest

from npuenv.core import documents as _toml
from tests.contract.images import Said, differences, read, rows, written

TEXT = r"""
RUN apt-get update -y && \
    # Not a package: vim
    apt-get install -y git gcc g++ libjemalloc2 && \
    rm -rf /var/lib/apt/lists/*
RUN pip config set global.index-url ${PIP_INDEX_URL} && \
    python3 -m pip install modelscope 'ray>=2.47.1,<=2.48.0' "protobuf>3.20.0" && python3 -m pip cache purge
RUN python3 -m pip install -v -e /vllm-workspace/vllm/[audio] --extra-index https://example.org/cpu/
RUN if [ "$PYTHON_TAG" = "cp310" ] && [ "$ARCH" = "aarch64" ]; then PTA_WHEEL="torch_npu-2.9.0%2Bgit1-x.whl"; \
    elif [ "$PYTHON_TAG" = "cp311" ] && [ "$ARCH" = "x86_64" ]; then PTA_WHEEL="torch_npu-2.9.0%2Bgit2-x.whl"; \
    elif [ "$PYTHON_TAG" = "cp311" ] && [ "$ARCH" = "aarch64" ]; then PTA_WHEEL="torch_npu-2.9.0%2Bgit3-x.whl"; fi; \
    TRITON_ASCEND_WHEEL="triton_ascend-3.2.0.dev1-${PYTHON_TAG}.whl" && pip install "https://example.org/${PTA_WHEEL}"
RUN apt-get -y install clang-15 && update-alternatives --install /usr/bin/clang clang /usr/bin/clang-15 20
RUN echo "export LD_PRELOAD=/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2:$LD_PRELOAD" >> ~/.bashrc
RUN echo "export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/usr/local/lib" >> ~/.bashrc
"""
SAID = Said(
    ("git", "gcc", "g++", "libjemalloc2", "clang-15"),
    {"LD_PRELOAD": "libjemalloc.so.2 prepended", "LD_LIBRARY_PATH": "/usr/local/lib appended"},
    {
        "modelscope": "",
        "ray": ">=2.47.1,<=2.48.0",
        "protobuf": ">3.20.0",
        "vllm[audio]": "",
        "torch-npu": "==2.9.0+git3",
        "triton-ascend": "==3.2.0.dev1",
    },
)


def test_a_file_is_read_as_its_shell_would() -> None:
    assert read(TEXT, python="3.11") == SAID


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ("git gcc g++", "git gcc g++ jq", "system_packages"),
        ("install clang-15", "install clang-16", "system_packages"),
        ("protobuf>3.20.0", "protobuf>3.21.0", "packages"),
        ("[audio]", "[audio,tensorizer]", "packages"),
        ("git3", "git4", "packages"),
        (":/usr/local/lib", ":/usr/local/lib64", "env"),
    ],
)
def test_what_changes_in_a_file_is_a_difference_to_its_row(old: str, new: str, column: str) -> None:
    row = dataclasses.replace(rows()[0], system_packages=SAID.system, env=SAID.env, packages=SAID.packages)
    assert list(differences(row, SAID)) == []
    changed = list(differences(row, read(TEXT.replace(old, new), python="3.11")))
    assert [line.partition(" =")[0] for line in changed] == [column]


def test_the_table_is_written_where_it_says_otherwise_and_nowhere_else() -> None:
    block = '[[row]]\nid = "{}"\nsystem_packages = []\npackages = {{}}\n\n'
    text = "# Head\n\n" + block.format("one") + block.format("two")
    after = written(text, {"two": ['system_packages = ["g++"]']})
    assert after == "# Head\n\n" + block.format("one") + block.format("two").replace("[]", '["g++"]')
    assert [row["system_packages"] for row in _toml.parse_toml(after)["row"]] == [[], ["g++"]]
