"""A stack as the folder of an image: what stands in it, what is refused, and what both architectures share."""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.render.base import unpinned
from npuenv.render.docker import MARK, render_docker
from npuenv.resolve.types import BuildStep, GitSource, Override, Platform, Reason
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from types import SimpleNamespace

ARCHS = ("x86_64", "aarch64")
FOLDER = "sample-1.0.a2.ubuntu22.04"
NETRC = "RUN --mount=type=secret,id=netrc,target=/root/.netrc \\"
DIGEST = "sha256:" + "0123456789abcdef" * 4
TAGS = "vllm@v0.11.0,Megatron-LM@core_v0.12.1"  # the sources at a tag whose commit nobody recorded


def rendered(sample: SimpleNamespace, **changes: Any) -> dict[str, str]:
    """File name -> text, with the same changes to both stacks."""
    stacks = {arch: sample.stack(arch, **changes) for arch in ARCHS}
    files = render_docker(stacks, sample.locks, indexes=sample.indexes)
    return {path.partition("/")[2]: content for path, content in files.items()}


def test_the_folder_is_named_after_stack_hardware_and_system(sample: SimpleNamespace) -> None:
    files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes)
    assert sorted(files) == [
        f"{FOLDER}/{name}"
        for name in (
            "Dockerfile",
            "activate.sh",
            "entrypoint.sh",
            "healthcheck.py",
            "requirements.aarch64.grpcio.txt",
            "requirements.aarch64.ray.txt",
            "requirements.aarch64.torch.txt",
            "requirements.aarch64.triton-ascend.huawei-ascend.txt",
            "requirements.aarch64.txt",
            "requirements.x86_64.grpcio.txt",
            "requirements.x86_64.ray.txt",
            "requirements.x86_64.torch.pytorch-cpu.txt",
            "requirements.x86_64.torch.txt",
            "requirements.x86_64.triton-ascend.huawei-ascend.txt",
            "requirements.x86_64.txt",
        )
    ]


def test_the_same_values_give_the_same_bytes_and_nothing_of_this_machine(sample: SimpleNamespace) -> None:
    once, again = rendered(sample), rendered(sample)
    assert once == again
    whole = "".join(once.values())
    assert os.uname().nodename not in whole
    assert os.getcwd() not in whole


def test_order_of_the_mapping_makes_no_difference(sample: SimpleNamespace) -> None:
    turned = render_docker(
        dict(reversed(sample.stacks.items())), dict(reversed(sample.locks.items())), indexes=sample.indexes
    )
    assert turned == render_docker(sample.stacks, sample.locks, indexes=sample.indexes)


def test_only_x86_64_takes_torch_from_the_cpu_index(sample: SimpleNamespace) -> None:
    files = rendered(sample)
    assert files["requirements.x86_64.torch.pytorch-cpu.txt"].splitlines()[2] == "torch==2.7.1+cpu \\"
    assert files["requirements.aarch64.torch.txt"].splitlines()[1:4:2] == ["torch==2.7.1 \\", "torch-npu==2.7.1 \\"]
    step = files["Dockerfile"].split("\n# torch: ")[1].split("\n\n")[0]
    amd64, arm64 = step.split("arm64)")
    assert '--index-url "${PYTORCH_CPU_INDEX}"' in amd64
    assert "index" not in arm64


def test_every_locked_package_stands_in_exactly_one_list_with_its_hash(sample: SimpleNamespace) -> None:
    files = rendered(sample)
    for arch in ARCHS:
        lists = "".join(content for name, content in files.items() if name.startswith(f"requirements.{arch}."))
        for package in sample.locks[arch].packages:
            entry = f"{package.name}=={package.version} \\\n    --hash=sha256:{package.sha256[0]}\n"
            assert f"\n{lists}".count(f"\n{entry}") == 1


def test_settings_and_arguments_stand_before_the_shell(sample: SimpleNamespace) -> None:
    words = [line.partition(" ")[0] for line in rendered(sample)["Dockerfile"].splitlines()]
    shell = words.index("SHELL")
    assert words.count("SHELL") == 1
    assert [number for number, word in enumerate(words) if word in ("ARG", "ENV") and number > shell] == []
    assert words.index("RUN") > shell


def test_addresses_of_indexes_stand_in_arguments_only(sample: SimpleNamespace) -> None:
    files = rendered(sample)
    lines = [line for content in files.values() for line in content.splitlines() if "example.org/simple" in line]
    assert lines == [
        'ARG HUAWEI_ASCEND_INDEX="https://huawei-ascend.example.org/simple/"',
        'ARG PYTORCH_CPU_INDEX="https://pytorch-cpu.example.org/simple/"',
    ]


def test_the_default_index_and_proxies_are_not_set(sample: SimpleNamespace) -> None:
    lines = rendered(sample)["Dockerfile"].splitlines()
    assert "ARG PIP_INDEX_URL" in lines
    assert [line for line in lines if "proxy" in line and not line.startswith("#")] == []


def test_a_partial_lock_is_said_and_its_packages_go_without_hash(sample: SimpleNamespace) -> None:
    locks = {arch: sample.lock(arch, is_partial=True) for arch in ARCHS}
    files = render_docker(sample.stacks, locks, indexes=sample.indexes)
    dockerfile = files[f"{FOLDER}/Dockerfile"]
    said = [line for line in dockerfile.splitlines() if line.startswith("# no hash: torch")]
    assert said == ["# no hash: torch==2.7.1+cpu on x86_64 (index-out-of-reach pytorch-cpu)"]
    name = "requirements.x86_64.torch.pytorch-cpu.unhashed.txt"
    assert files[f"{FOLDER}/{name}"].splitlines()[-1] == "torch==2.7.1+cpu"
    install = next(line for line in dockerfile.splitlines() if "pip install" in line and name in line)
    assert "--require-hashes" not in install
    others = [line for line in dockerfile.splitlines() if "pip install" in line and "--requirement" in line]
    assert [line for line in others if "--require-hashes" not in line] == [install]


def test_a_complete_lock_speaks_of_no_missing_hash(sample: SimpleNamespace) -> None:
    assert "no hash" not in rendered(sample)["Dockerfile"]


def test_other_gaps_of_a_lock_are_said_too(sample: SimpleNamespace) -> None:
    from npuenv.lock.file import Missing

    gap = Missing("roll", "8eb27cc2", "requirements-unknown")
    locks = {arch: dataclasses.replace(sample.locks[arch], missing=(gap,)) for arch in ARCHS}
    dockerfile = render_docker(sample.stacks, locks, indexes=sample.indexes)[f"{FOLDER}/Dockerfile"]
    said = [line for line in dockerfile.splitlines() if line.startswith("#") and "roll" in line]
    assert said == [
        "# not locked: roll 8eb27cc2 on x86_64 (requirements-unknown)",
        "# not locked: roll 8eb27cc2 on aarch64 (requirements-unknown)",
    ]
    assert f'\nLABEL npuenv.unpinned="base-image,{TAGS},roll"\n' in dockerfile


def test_a_moving_branch_is_a_comment_and_a_label(sample: SimpleNamespace) -> None:
    lines = rendered(sample)["Dockerfile"].splitlines()
    assert 'LABEL npuenv.moving-sources="verl@main"' in lines
    at = next(number for number, line in enumerate(lines) if line.startswith("# Source verl follows branch main"))
    assert lines[at + 1 : at + 3] == [NETRC, "    git init --quiet /opt/src/verl \\"]


def test_a_tag_whose_commit_is_known_is_checked_and_another_is_called_unpinned(sample: SimpleNamespace) -> None:
    first, *rest = sample.stack().git_sources
    known = dataclasses.replace(first, commit="0123456789")
    for commit, tags, source in (("", TAGS, first), ("vllm@0123456789", "Megatron-LM@core_v0.12.1", known)):
        lines = rendered(sample, git_sources=(source, *rest))["Dockerfile"].splitlines()
        assert f'LABEL npuenv.unpinned="base-image,{tags}"' in lines
        assert [line for line in lines if "checked-commits" in line] == (
            [f'LABEL npuenv.checked-commits="{commit}"'] if commit else []
        )
        asked = [line for line in lines if "rev-parse" in line]
        check = "    && git -C /opt/src/vllm rev-parse --verify '0123456789^{commit}' \\"
        assert asked == ([check] if commit else [])
        said = "build fails if that is not commit 0123456789" if commit else "whose commit is not recorded"
        assert [line for line in lines if line.startswith("# Source vllm ") and said in line]


def test_overrides_are_said_once_with_their_reason(sample: SimpleNamespace) -> None:
    override = Override("vllm", "exclude", "triton", Reason(Message("cli.no")))
    lines = rendered(sample, overrides=(override,))["Dockerfile"].splitlines()
    said = sentence("render.override-exclude", requirement="triton", reason=Message("cli.no"))
    assert [line for line in lines if line.startswith("# * triton: ")] == [f"# * {said}"]


def test_an_override_of_one_architecture_names_it(sample: SimpleNamespace) -> None:
    override = Override("vllm", "replace", "torch==2.7.1+cpu", Reason(Message("cli.no")))
    stacks = {**sample.stacks, "x86_64": sample.stack("x86_64", overrides=(override,))}
    dockerfile = render_docker(stacks, sample.locks, indexes=sample.indexes)[f"{FOLDER}/Dockerfile"]
    said = "# * [x86_64] vllm: requirement replaced by torch==2.7.1+cpu. no"
    assert said in dockerfile.splitlines()


def test_settings_of_the_stack_stay_in_the_image_sorted(sample: SimpleNamespace) -> None:
    lines = rendered(sample)["Dockerfile"].splitlines()
    assert [line for line in lines if line.startswith("ENV ")] == [
        'ENV HCCL_CONNECT_TIMEOUT="1500"',
        'ENV VLLM_USE_V1="1"',
    ]


def test_a_package_that_is_removed_first_is_installed_after_that_step_only(sample: SimpleNamespace) -> None:
    order = sample.stacks["x86_64"].order
    early = BuildStep("early", "requirements", ("triton-ascend", "pyarrow"), Message("cli.yes"))
    files = rendered(sample, order=(early, *order))
    assert "pyarrow==24.0.0" in files["requirements.aarch64.early.txt"]
    assert "requirements.aarch64.txt" not in files
    named = [name for name, content in files.items() if "\ntriton-ascend==" in content and "aarch64" in name]
    assert named == ["requirements.aarch64.triton-ascend.huawei-ascend.txt"]


def test_a_package_that_is_only_removed_is_not_installed(sample: SimpleNamespace) -> None:
    from npuenv.lock.file import LockedPackage

    triton = LockedPackage("triton", "3.4.0", ("0" * 64,))
    locks = {arch: dataclasses.replace(lock, packages=(*lock.packages, triton)) for arch, lock in sample.locks.items()}
    files = render_docker(sample.stacks, locks, indexes=sample.indexes)
    assert [name for name, content in files.items() if "\ntriton==" in content] == []


def test_a_stack_without_a_step_for_the_rest_is_refused(sample: SimpleNamespace) -> None:
    order = tuple(step for step in sample.stacks["x86_64"].order if step.does != "rest")
    with pytest.raises(BadInput) as caught:
        rendered(sample, order=order)
    assert caught.value.message == Message("render.no-place", {"package": "pyarrow", "stack": "sample-1.0"})


def test_one_architecture_alone_refuses_the_other_in_its_build(sample: SimpleNamespace) -> None:
    files = render_docker(
        {"aarch64": sample.stacks["aarch64"]}, {"aarch64": sample.locks["aarch64"]}, indexes=sample.indexes
    )
    assert not [path for path in files if "x86_64" in path]
    assert "amd64" not in files[f"{FOLDER}/Dockerfile"]
    assert says(files[f"{FOLDER}/Dockerfile"], "render.no-arch", archs="arm64")


def test_open_euler_uses_dnf(sample: SimpleNamespace) -> None:
    changes = {
        arch: dataclasses.replace(stack, platform=dataclasses.replace(stack.platform, os="openeuler24.03"))
        for arch, stack in sample.stacks.items()
    }
    files = render_docker(changes, sample.locks, indexes=sample.indexes)
    dockerfile = files["sample-1.0.a2.openeuler24.03/Dockerfile"]
    install = "&& dnf install -y --setopt=install_weak_deps=False gcc gcc-c++ git \\\n    && dnf clean all \\\n"
    assert install in dockerfile
    assert "apt-get" not in dockerfile
    assert "activate.sh' >> /etc/bashrc" in dockerfile


def test_the_newer_layout_of_cann_has_its_script_inside(sample: SimpleNamespace) -> None:
    files = rendered(sample, cann_root="/usr/local/Ascend/cann-8.5.0")
    assert "    && . /usr/local/Ascend/cann-8.5.0/set_env.sh \\\n" in files["Dockerfile"]
    assert "    && . /usr/local/Ascend/nnal/atb/set_env.sh \\\n" in files["Dockerfile"]
    assert "/usr/local/Ascend/cann-8.5.0/aarch64-linux/devlib" in files["Dockerfile"]


def test_the_first_line_names_the_folder_in_every_language(sample: SimpleNamespace) -> None:
    for lang in ("en", "zh"):
        files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes, lang=lang)
        assert files[f"{FOLDER}/Dockerfile"].splitlines()[0] == f"{MARK}{FOLDER}"
    assert "镜像" in files[f"{FOLDER}/Dockerfile"]


def test_languages_differ_in_words_and_not_in_instructions(sample: SimpleNamespace) -> None:
    def instructions(lang: str) -> list[str]:
        files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes, lang=lang)
        lines = files[f"{FOLDER}/Dockerfile"].splitlines()
        return [line for line in lines if not line.startswith("#") and ">&2" not in line]

    assert instructions("zh") == instructions("en")


def test_a_cpu_stack_has_no_image(sample: SimpleNamespace) -> None:
    with pytest.raises(BadInput) as caught:
        rendered(sample, image=None, platform=Platform("x86_64", "3.11"))
    assert caught.value.message.key == "render.not-an-image"
    assert caught.value.hint == Message("render.not-an-image-hint", {"stack": "sample-1.0"})


def test_a_combination_without_a_published_base_image_is_refused(sample: SimpleNamespace) -> None:
    with pytest.raises(BadInput) as caught:
        rendered(sample, image=None)
    assert caught.value.message.key == "render.no-base-image"
    assert caught.value.message.args["os"] == "ubuntu22.04"
    assert caught.value.hint == Message("render.no-base-image-hint", {"stack": "sample-1.0"})  # not the same command


def test_a_published_image_that_puts_its_cann_over_another_ones_is_named(sample: SimpleNamespace) -> None:
    with pytest.raises(BadInput) as caught:
        rendered(sample, name="verl-qwen3.5-cann8.5.2", image=None)
    said, hint = caught.value.message, caught.value.hint
    assert said.key == "render.cann-over-base" and hint is not None
    assert "cann:8.5.1-910b-ubuntu22.04-py3.11" in say(said) and ".run files" in say(said)
    assert "--cann 8.5.1 --hardware a" in say(hint)
    with pytest.raises(BadInput) as caught:  # the published file is for another system, and its base has its CANN
        rendered(
            sample, name="verl-0.7.1-cann8.5.0", image=None, platform=Platform("x86_64", "3.11", "a2", "openeuler24.03")
        )
    assert caught.value.message.key == "render.no-base-image"


def test_an_unknown_system_is_refused(sample: SimpleNamespace) -> None:
    with pytest.raises(BadInput) as caught:
        rendered(sample, platform=Platform("x86_64", "3.11", "a2", "alpine3"))
    assert caught.value.message == Message("render.unknown-os", {"os": "alpine3"})


def test_stacks_that_do_not_belong_together_are_refused(sample: SimpleNamespace) -> None:
    stacks = {**sample.stacks, "aarch64": sample.stack("aarch64", image="other:1")}
    with pytest.raises(BadInput) as caught:
        render_docker(stacks, sample.locks, indexes=sample.indexes)
    assert caught.value.message.args["what"] == "image"


def test_a_missing_or_foreign_lock_is_refused(sample: SimpleNamespace) -> None:
    with pytest.raises(BadInput) as caught:
        render_docker(sample.stacks, {"x86_64": sample.locks["x86_64"]}, indexes=sample.indexes)
    assert caught.value.message == Message("render.no-lock", {"stack": "sample-1.0", "arch": "aarch64"})
    swapped = {"x86_64": sample.locks["aarch64"], "aarch64": sample.locks["aarch64"]}
    with pytest.raises(BadInput) as caught:
        render_docker(sample.stacks, swapped, indexes=sample.indexes)
    assert caught.value.message.key == "render.wrong-lock"


def test_a_lock_with_other_versions_than_the_stack_is_refused(sample: SimpleNamespace) -> None:
    first, *others = sample.stacks["aarch64"].pins[1:]
    pins = (dataclasses.replace(first, version="2.8.0"), *others)
    stacks = {**sample.stacks, "aarch64": sample.stack("aarch64", pins=pins)}
    with pytest.raises(BadInput) as caught:
        render_docker(stacks, sample.locks, indexes=sample.indexes)
    assert caught.value.message.key == "render.stale-lock"
    assert caught.value.message.args["locked"] == "2.7.1"


def test_a_lock_of_a_set_that_does_not_resolve_is_refused(sample: SimpleNamespace) -> None:
    from npuenv.lock.file import Missing

    gap = Missing("*", "", "does-not-resolve", detail="Because numpy<2 ...")
    locks = {**sample.locks, "aarch64": dataclasses.replace(sample.locks["aarch64"], packages=(), missing=(gap,))}
    with pytest.raises(BadInput) as caught:
        render_docker(sample.stacks, locks, indexes=sample.indexes)
    assert caught.value.message.key == "render.unresolved-lock"
    assert caught.value.message.args["why"] == "Because numpy<2 ..."


def test_an_index_without_address_is_refused(sample: SimpleNamespace) -> None:
    indexes = {"pytorch-cpu": sample.indexes["pytorch-cpu"]}
    with pytest.raises(BadInput) as caught:
        render_docker(sample.stacks, sample.locks, indexes=indexes)
    assert caught.value.message.args["label"] == "huawei-ascend"


def test_an_index_address_with_a_password_is_refused_without_repeating_it(sample: SimpleNamespace) -> None:
    row = dataclasses.replace(sample.indexes["huawei-ascend"], url="https://me:secret@mirror.example.org/simple/")
    with pytest.raises(BadInput) as caught:
        render_docker(sample.stacks, sample.locks, indexes={**sample.indexes, "huawei-ascend": row})
    assert caught.value.message == Message("render.index-password", {"label": "huawei-ascend"})
    assert "secret" not in str(caught.value.hint)


EVIL = ("x' && evil '", 'x" && evil "', "x\nRUN evil", "$(evil)", "`evil`", "x\\")


@pytest.mark.parametrize("value", EVIL)
@pytest.mark.parametrize(
    "change",
    [
        lambda value: {"image": value},
        lambda value: {"name": value},
        lambda value: {"cann_root": f"/usr/{value}"},
        lambda value: {"soc_version": value},
        lambda value: {"env": {"NAME": value}},
        lambda value: {"env": {value: "1"}},
        lambda value: {"system_packages": ("gcc", value)},
        lambda value: {"order": (BuildStep("out", "uninstall", (value,), Message("cli.yes")),)},
        lambda value: {"git_sources": (GitSource("vllm", value, "v1", False),)},
        lambda value: {"git_sources": (GitSource("vllm", "https://example.org/x.git", value, False),)},
        lambda value: {"git_sources": (GitSource("vllm", "https://example.org/x.git", "v1", False, {"A": value}),)},
        lambda value: {"git_sources": (GitSource("vllm", "https://example.org/x.git", "v1", False, {value: "1"}),)},
    ],
)
def test_no_value_of_a_stack_breaks_out(sample: SimpleNamespace, change: Any, value: str) -> None:
    changes = change(value)
    if "order" in changes:
        changes["order"] += tuple(step for step in sample.stacks["x86_64"].order if step.does != "uninstall")
    if "git_sources" in changes:
        order = sample.stacks["x86_64"].order
        changes["order"] = tuple(step for step in order if step.does != "git" or step.id == "vllm")
    name = changes.get("name", "sample-1.0")
    sample.locks = {arch: dataclasses.replace(lock, stack=name) for arch, lock in sample.locks.items()}
    with pytest.raises(BadInput) as caught:
        rendered(sample, **changes)
    assert caught.value.message.key in ("render.unsafe-value", "render.unsafe-name")


@pytest.mark.parametrize("value", EVIL)
@pytest.mark.parametrize("field", ["name", "version", "sha256"])
def test_no_value_of_a_lock_breaks_out(sample: SimpleNamespace, field: str, value: str) -> None:
    first, *others = sample.locks["x86_64"].packages
    evil = dataclasses.replace(first, **{field: (value,) if field == "sha256" else value})
    locks = {**sample.locks, "x86_64": dataclasses.replace(sample.locks["x86_64"], packages=(evil, *others))}
    with pytest.raises(BadInput) as caught:
        render_docker(sample.stacks, locks, indexes=sample.indexes)
    assert caught.value.message.key == "render.unsafe-value"


def test_signs_of_the_shell_in_a_version_or_a_path_stay_in_their_word(sample: SimpleNamespace) -> None:
    signs = ";evil&&evil|evil>evil#(evil)"
    first = sample.stacks["x86_64"]
    locks = {
        arch: dataclasses.replace(
            lock, packages=tuple(dataclasses.replace(each, version=signs) for each in lock.packages)
        )
        for arch, lock in sample.locks.items()
    }
    stacks = {
        arch: sample.stack(
            arch,
            pins=tuple(dataclasses.replace(pin, version=signs) for pin in first.pins),
            cann_root=f"/usr/{signs}",
            system_packages=(f"gcc{signs}",),
            git_sources=(GitSource("vllm", f"https://{signs}", f"v{signs}", False, {"A": signs}, commit=f"a{signs}"),),
            order=(
                *(step for step in first.order if step.does == "rest" or step.id in ("torch", "vllm")),
                BuildStep("out", "uninstall", (f"triton{signs}",), Message("cli.yes")),
            ),
        )
        for arch in ARCHS
    }
    text = render_docker(stacks, locks, indexes=sample.indexes)[f"{FOLDER}/Dockerfile"]
    blocks = [block.partition("\n\n")[0].partition("\n#")[0] for block in text.split("\nRUN ")[1:]]
    words = [word for block in blocks for word in shlex.shlex(block, posix=True, punctuation_chars=True)]
    assert [word for word in words if "evil" in word and signs not in word] == []
    assert sum(signs in word for word in words) >= 10


@pytest.mark.parametrize("value", ["image AS other", "--platform=other", ""])
def test_a_base_image_is_one_word(sample: SimpleNamespace, value: str) -> None:
    with pytest.raises(BadInput) as caught:
        rendered(sample, image=value)
    assert caught.value.message.key == "render.unsafe-word"


def test_a_ref_cannot_be_an_option_of_git(sample: SimpleNamespace) -> None:
    order = tuple(step for step in sample.stacks["x86_64"].order if step.does != "git" or step.id == "vllm")
    source = GitSource("vllm", "https://example.org/x.git", "--upload-pack=evil", False)
    with pytest.raises(BadInput) as caught:
        rendered(sample, git_sources=(source,), order=order)
    assert caught.value.message.key == "render.unsafe-word"


def test_words_of_a_reason_cannot_become_instructions(sample: SimpleNamespace) -> None:
    override = Override("x\nRUN evil", "exclude", "y\nUSER root", Reason(Message("cli.no")))
    lines = rendered(sample, overrides=(override,))["Dockerfile"].splitlines()
    said = sentence("render.override-exclude", requirement="y USER root", reason=Message("cli.no"))
    assert [line for line in lines if "evil" in line or "USER root" in line] == [f"# * {said}"]


def test_a_base_image_without_digest_is_reported_in_head_label_and_message(sample: SimpleNamespace) -> None:
    dockerfile = rendered(sample)["Dockerfile"]
    head = dockerfile.partition("\nFROM ")[0]
    image = "registry.example.org/cann:8.3.rc1-910b-ubuntu22.04-py3.11"
    assert says(head.replace("\n#", " "), "render.base-unpinned", image=image)
    assert f'\nLABEL npuenv.unpinned="base-image,{TAGS}"\n' in dockerfile
    assert "org.opencontainers.image.base.digest" not in dockerfile
    said = unpinned(sample.stack(), None)
    assert [(each.key, each.args["image"]) for each in said] == [("render.base-unpinned", sample.stack().image)]
    assert unpinned(sample.stack(), DIGEST) == ()


def test_a_digest_pins_the_base_image_and_stands_in_a_label(sample: SimpleNamespace) -> None:
    files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes, digest=DIGEST)
    lines = files[f"{FOLDER}/Dockerfile"].splitlines()
    assert f'ARG NPUENV_BASE_IMAGE="registry.example.org/cann@{DIGEST}"' in lines
    assert f'LABEL org.opencontainers.image.base.digest="{DIGEST}"' in lines
    assert f'LABEL org.opencontainers.image.base.name="{sample.stack().image}"' in lines
    assert [line for line in lines if "not pinned" in line] == []
    assert [line for line in lines if "npuenv.unpinned" in line] == [f'LABEL npuenv.unpinned="{TAGS}"']


def test_the_port_of_a_registry_is_no_tag(sample: SimpleNamespace) -> None:
    stacks = {arch: sample.stack(arch, image="localhost:5000/cann:1") for arch in ARCHS}
    files = render_docker(stacks, sample.locks, indexes=sample.indexes, digest=DIGEST)
    assert f'ARG NPUENV_BASE_IMAGE="localhost:5000/cann@{DIGEST}"' in files[f"{FOLDER}/Dockerfile"]


@pytest.mark.parametrize("value", ["", "sha256:", DIGEST.upper(), DIGEST[:-1], f"{DIGEST}\n", "sha512:" + "0" * 64])
def test_what_is_no_digest_is_refused(sample: SimpleNamespace, value: str) -> None:
    with pytest.raises(BadInput) as error:
        render_docker(sample.stacks, sample.locks, indexes=sample.indexes, digest=value)
    assert error.value.message.key == "render.bad-digest"


def test_another_user_is_the_default_of_its_argument(sample: SimpleNamespace) -> None:
    files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes, user="trainer")
    lines = files[f"{FOLDER}/Dockerfile"].splitlines()
    assert 'ARG NPUENV_USER="trainer"' in lines
    assert "USER ${NPUENV_USER}" in lines


@pytest.mark.parametrize("value", ["", "0", "a b", "A", "-r", "a;b", "$(id)", 'a"', "a\n", "a" * 33])
def test_what_is_no_user_is_refused(sample: SimpleNamespace, value: str) -> None:
    with pytest.raises(BadInput) as error:
        render_docker(sample.stacks, sample.locks, indexes=sample.indexes, user=value)
    assert error.value.message.key == "render.bad-user"


def test_everything_that_reaches_out_may_log_in_by_a_secret_that_no_layer_keeps(sample: SimpleNamespace) -> None:
    blocks = rendered(sample)["Dockerfile"].split("\nRUN ")[1:]
    reaching = [block for block in blocks if "pip install" in block or "git -C" in block]
    assert len(reaching) == 10
    assert [block for block in reaching if not block.startswith(NETRC.removeprefix("RUN "))] == []
    assert [block for block in blocks if block not in reaching and "netrc" in block] == []
