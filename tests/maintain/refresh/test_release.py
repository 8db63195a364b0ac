"""What policy tables and Dockerfiles say."""

from __future__ import annotations

import pytest

from npuenv.maintain.refresh.release import PolicyRow, built_images, cann_name, policy_rows, vllm_tag
from npuenv.matrix.rows import Hardware, ReleaseImage

HARDWARE = tuple(
    Hardware(id=name, source="", seen="", title="", names=(), socs=(), image_chip=chip)
    for name, chip in {"a2": "910b", "a3": "a3", "950": "950", "310p": "310p", "910": ""}.items()
)


def dockerfile(tag: str, *, more: str = "") -> str:
    return f"FROM registry.example/ascend/cann:{tag}\n{more}"


def test_a_policy_table_is_read_by_its_heads_and_the_main_branch_is_left_out() -> None:
    text = """
| vLLM Ascend | Triton Ascend | vLLM | PyTorch/torch_npu | Python | Stable CANN |
|---|---|---|---|---|---|
| v0.18.0 | 3.2.0.dev20260322 | v0.18.0 | 2.9.0  / 2.9.0.post1+git4c901a4 | >= 3.10, < 3.12 | 8.5.1 |
| v0.10.1rc1 | N/A | v0.10.1/v0.10.1.1 | 2.7.1 / 2.7.1.dev20250724 | >= 3.9, < 3.12 | 8.3.rc1 |

| vLLM Ascend | vLLM |
|---|---|
| main | {{main_vllm_tag}} |

| Something else | vLLM |
|---|---|
| v9.9.9 | v9.9.9 |
"""
    assert policy_rows(text) == {
        "0.18.0": PolicyRow("0.18.0", "0.18.0", ">=3.10,<3.12", "8.5.1", "2.9.0.post1+git4c901a4", "3.2.0.dev20260322"),
        "0.10.1rc1": PolicyRow("0.10.1rc1", "0.10.1", ">=3.9,<3.12", "8.3.RC1", "2.7.1.dev20250724", ""),
    }


def test_no_table_gives_no_rows() -> None:
    assert policy_rows("# Versioning\n\nno table | here\n") == {}


def test_files_of_the_same_content_are_one_image() -> None:
    texts = {
        "Dockerfile": dockerfile("9.0.0-910b-ubuntu22.04-py3.12", more="RUN pip install 'ray>=2.47.1,<=2.48.0'\n"),
        "Dockerfile.openEuler": dockerfile(
            "9.0.0-910b-openeuler24.03-py3.12", more='RUN pip install "ray>=2.47.1,<=2.48.0"\n'
        ),
        "Dockerfile.a3": dockerfile("9.0.0-a3-ubuntu22.04-py3.12", more="RUN pip install x 'ray>=2.47.1,<=2.48.0' y\n"),
        "Dockerfile.a3.openEuler": dockerfile(
            "9.0.0-a3-openeuler24.03-py3.12", more="RUN pip install 'ray>=2.47.1,<=2.48.0'\n"
        ),
        "Dockerfile.310p": dockerfile(
            "9.1.0-beta.1-310p-ubuntu22.04-py3.12", more="# ray==1\nRUN pip install xray==3\n"
        ),
    }
    systems = ("ubuntu22.04", "openeuler24.03")
    assert built_images(texts, HARDWARE) == (
        ReleaseImage(("a2", "a3"), systems, "9.0.0", "3.12", ray=">=2.47.1,<=2.48.0"),
        ReleaseImage(("310p",), ("ubuntu22.04",), "9.1.0-beta.1", "3.12"),
    )


def test_build_arguments_stand_in_the_base_image() -> None:
    text = (
        'ARG HUB="registry.example/inference/cann"\nARG CANN_VERSION=9.2.0_20260930220649\n'
        "FROM ${HUB}:$CANN_VERSION-950-ubuntu22.04-py3.12\nRUN pip install 'torch-npu==2.8.0.post1'\n"
    )
    (image,) = built_images({"Dockerfile.a5": text}, HARDWARE)
    assert (image.hardware, image.cann, image.torch_npu) == (("950",), "9.2.0_20260930220649", "2.8.0.post1")


@pytest.mark.parametrize("tag", ["9.0.0-unknown-ubuntu22.04-py3.12", "latest"])
def test_a_base_image_that_cannot_be_named_is_left_out(tag: str) -> None:
    assert built_images({"Dockerfile": dockerfile(tag)}, HARDWARE) == ()


def test_systems_that_differ_in_more_than_their_name_stay_apart() -> None:
    texts = {
        "Dockerfile": dockerfile("8.5.1-910b-ubuntu22.04-py3.11"),
        "Dockerfile.openEuler": dockerfile("8.5.1-910b-openeuler24.03-py3.12"),
    }
    assert [(image.os, image.python) for image in built_images(texts, HARDWARE)] == [
        (("ubuntu22.04",), "3.11"),
        (("openeuler24.03",), "3.12"),
    ]


def test_the_vllm_of_a_dockerfile_is_the_tag_it_builds() -> None:
    assert vllm_tag("ARG VLLM_REPO=https://x.example/v.git\nARG VLLM_TAG=v0.10.1.1\n") == "0.10.1.1"
    assert vllm_tag("FROM x\n") == vllm_tag("ARG VLLM_TAG=main\n") == ""


def test_a_cann_of_an_image_tag_is_written_as_in_the_matrix() -> None:
    assert [cann_name(text) for text in ("8.3.rc1", "9.1.0-beta.1", "8.5.0")] == ["8.3.RC1", "9.1.0-beta.1", "8.5.0"]
