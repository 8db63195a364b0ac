"""What a container takes of its host, and which wishes are refused with which sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.preflight.memory.types import written_cards
from npuenv.render.container.description import Container, ContainerOptions, describe
from npuenv.resolve.types import Platform
from tests.render.conftest import make_stack
from tests.support.sentences import says

MATRIX = load_matrix()
MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
DRIVER = ("/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/etc/ascend_install.info")


def managers(hardware: str) -> tuple[str, ...]:
    """A 950 need not have devmm_svm."""
    return tuple(path for path in MANAGERS if hardware != "950" or path != "/dev/devmm_svm")


def made(hardware: str = "a2", *, image: str | None = "verl:a2", **wish: Any) -> Container:
    return describe(None, ContainerOptions(image=image, **wish), MATRIX, hardware=hardware)


def refusal(hardware: str = "a2", **wish: Any) -> str:
    """The sentence and the hint of the refusal of a wish, in one text; in Chinese there must be one too."""
    with pytest.raises(BadInput) as caught:
        made(hardware, **wish)
    assert caught.value.hint is not None
    texts = [f"{say(caught.value.message, lang)} | {say(caught.value.hint, lang)}" for lang in ("en", "zh")]
    assert texts[0] != texts[1]
    return texts[0]


@pytest.mark.parametrize(("hardware", "count"), [("a2", 8), ("a3", 16)])
def test_a_usual_node_gives_all_its_cards(hardware: str, count: int) -> None:
    container = made(hardware)
    assert container.cards == tuple(range(count))
    assert tuple(item.path for item in container.devices) == (*(f"/dev/davinci{n}" for n in range(count)), *MANAGERS)


def test_only_the_cards_chosen_are_given() -> None:
    container = made("a3", cards="7, 10-11,4")
    assert container.cards == (4, 7, 10, 11)
    assert [item.path for item in container.devices][:4] == [f"/dev/davinci{n}" for n in (4, 7, 10, 11)]
    assert container.environment == {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}


def test_the_drivers_places_are_mounted_where_they_are_and_never_writable() -> None:
    for hardware in ("310p", "a2", "a3", "950"):
        mounts = {mount.source: mount for mount in made(hardware, cards="0", has_add_ons=True).mounts}
        assert set(DRIVER) <= {source for source, mount in mounts.items() if mount.is_required}
        assert [mount for mount in mounts.values() if mount.source != mount.target or not mount.is_read_only] == []
        assert mounts["/usr/local/Ascend/add-ons"].is_required is False
    assert "/usr/local/Ascend/add-ons" not in {mount.source for mount in made().mounts}


def test_boards_with_a_unified_bus_have_further_device_nodes() -> None:
    devices = {item.path: item.is_required for item in made("950", cards="0").devices}
    always = dict.fromkeys(("/dev/davinci0", *managers("950")), True)
    assert devices == {**always, "/dev/ummu": False, "/dev/uburma": False}
    mounts = {mount.source: mount.is_required for mount in made("950", cards="0").mounts}
    assert {path for path, is_required in mounts.items() if not is_required} == {
        "/etc/hccl_rootinfo.json", "/lib/route.conf", "/etc/hixlep", "/usr/bin/urma_admin",
    }  # fmt: skip


def test_data_and_weights_are_writable_and_parents_come_first() -> None:
    container = made(models=Path("/srv/weights/"), data=Path("/srv/data/../all"))
    own = [(mount.source, mount.target, mount.is_read_only) for mount in container.mounts[-2:]]
    assert own == [("/srv/all", "/data", False), ("/srv/weights", "/data/models", False)]


def test_a_stack_gives_image_name_and_hardware() -> None:
    stack = dataclasses.replace(make_stack(), name="verl-0.7.1-cann8.3.RC1")
    container = describe(stack, ContainerOptions(), MATRIX)
    assert (container.image, container.name) == ("verl-0.7.1-cann8.3.rc1:a2", "verl-0-7-1-cann8-3-rc1-a2")
    assert (container.hardware, container.title) == ("a2", "verl-0.7.1-cann8.3.RC1.a2.ubuntu22.04")


def test_a_long_stack_name_still_makes_a_name_that_fits() -> None:
    container = describe(dataclasses.replace(make_stack(), name="a" * 39 + ".b"), ContainerOptions(), MATRIX)
    assert container.name == "a" * 39
    assert describe(dataclasses.replace(make_stack(), name="7b"), ContainerOptions(), MATRIX).name == "npuenv-7b-a2"


def test_a_stack_without_cards_has_no_container() -> None:
    stack = dataclasses.replace(make_stack(), name="cpu", platform=Platform("x86_64", "3.11"))
    with pytest.raises(BadInput) as caught:
        describe(stack, ContainerOptions(), MATRIX)
    assert caught.value.message == Message("container.no-cards", {"stack": "cpu"})


def test_without_a_stack_the_image_must_be_named() -> None:
    assert says(refusal(image=None), "container.image-needed")


@pytest.mark.parametrize(
    ("hardware", "cards", "key", "args"),
    [
        ("a2", "16", "no-such-card", {"hardware": "a2", "card": 16, "last": 15}),
        ("a2", "16", "no-such-card-hint", {"last": 15}),
        ("a3", "0-16", "no-such-card", {"hardware": "a3", "card": 16, "last": 15}),
        ("a2", "0-3,2", "card-twice", {"card": 2, "cards": "'0-3,2'"}),
        ("a2", "3-0", "bad-cards", {"cards": "'3-0'"}),
        ("a2", "0,,1", "bad-cards", {"cards": "'0,,1'"}),
        ("a2", "npu0", "bad-cards", {"cards": "'npu0'"}),
        ("a2", "-1", "bad-cards", {"cards": "'-1'"}),
        ("a2", "\u0661", "bad-cards", {}),
        ("310p", None, "cards-needed", {"hardware": "310p"}),
        ("310p", None, "cards-needed-hint", {}),
        ("950", None, "cards-needed", {"hardware": "950"}),
    ],
)
def test_cards_that_cannot_be_are_refused(hardware: str, cards: str | None, key: str, args: dict[str, Any]) -> None:
    assert says(refusal(hardware, cards=cards), f"container.{key}", **args)


@pytest.mark.parametrize(
    ("wish", "key", "args"),
    [
        ({"data": Path("data/x")}, "relative", {"what": "--data", "path": "data/x"}),
        ({"models": Path("weights")}, "relative-hint", {"what": "--models", "path": "weights"}),
        ({"data": Path("/a'b")}, "unsafe-value", {"what": "--data", "value": '"/a\'b"', "character": '"\'"'}),
        ({"data": Path('/a"b')}, "unsafe-value", {"character": "'\"'"}),
        ({"data": Path("/a\nb")}, "unsafe-value", {"character": "'\\n'"}),
        ({"data": Path("/$(id)")}, "unsafe-value", {"what": "--data", "value": "'/$(id)'", "character": "'$'"}),
        ({"models": Path("/a,b")}, "unsafe-value", {"what": "--models", "value": "'/a,b'", "character": "','"}),
        ({"models": Path("/a:b")}, "unsafe-path-hint", {}),
        ({"data": Path("/srv/..")}, "whole-root", {"what": "--data"}),
        ({"image": "verl:a2; reboot"}, "bad-image", {"image": "'verl:a2; reboot'"}),
        ({"image": "-v/:/host"}, "bad-image", {}),
        ({"image": "Verl:a2"}, "bad-image-hint", {}),
        ({"image": "verl:a2\n"}, "bad-image", {}),
        ({"name": "My_Job"}, "bad-name", {"name": "'My_Job'"}),
        ({"name": "My_Job"}, "use", {"near": "my-job"}),
        ({"name": "a" * 41}, "bad-name", {}),
        ({"name": ""}, "use", {"near": "npuenv"}),
        ({"name": "7b-grpo"}, "bad-name", {}),
        ({"name": "7b-grpo"}, "use", {"near": "npuenv-7b-grpo"}),
        ({"user": "root"}, "bad-user", {"user": "'root'"}),
        ({"user": "0 --privileged"}, "bad-user", {}),
        ({"nodes": 0}, "bad-nodes", {"nodes": 0}),
        ({"shm_gib": 0}, "bad-shm", {"gib": 0}),
        ({"command": "echo 'a"}, "open-quote", {}),
        (
            {"command": "sh -c '$(reboot)'"},
            "unsafe-value",
            {"what": "--command", "value": "'$(reboot)'", "character": "'$'"},
        ),
        ({"command": "  "}, "no-words", {"what": "--command"}),
    ],
)
def test_a_value_that_could_break_out_is_refused_by_name(wish: dict[str, Any], key: str, args: dict[str, Any]) -> None:
    area = "render" if key == "unsafe-value" else "container"
    assert says(refusal(**wish), f"{area}.{key}", **args)


@pytest.mark.parametrize(
    "image",
    [
        "verl",
        "verl:a2",
        "team/verl:a2",
        "quay.io/ascend/vllm-ascend:v0.11.0rc1-a3",
        "localhost:5000/verl@sha256:" + "0" * 64,
    ],
)
def test_references_of_the_usual_kinds_are_images(image: str) -> None:
    assert made(image=image).image == image


@pytest.mark.parametrize(
    ("numbers", "short"), [((0,), "0"), ((0, 1, 2), "0-2"), ((4, 7), "4,7"), ((0, 1, 3, 4, 5, 9), "0-1,3-5,9")]
)
def test_runs_of_numbers_are_said_in_short(numbers: tuple[int, ...], short: str) -> None:
    assert written_cards(numbers) == short


def test_every_generation_that_stacks_run_on_has_its_cards_and_places() -> None:
    accepted = {row.id for row in MATRIX.hardware if row.accepted}
    assert {row.hardware for row in MATRIX.container_cards} == accepted
    for hardware in accepted:
        always = {row.path for row in MATRIX.container_places if hardware in row.hardware and row.need == "always"}
        assert always == {*managers(hardware), *DRIVER}
