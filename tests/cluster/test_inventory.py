"""Inventories: ranges, settings, other tools' lists, and what is wrong with a line."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import pytest

from npuenv.cluster.inventory import MOST_NODES, NO_JUMP, Node, fold, parse, read
from npuenv.cluster.ssh import argv_for
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from pathlib import Path


def names(text: str) -> list[str]:
    return [node.name for node in parse(text, "hosts").nodes]


def refusal(text: str) -> dict[str, object]:
    """What is wrong with an inventory: the name of the sentence, its values, and the line where that is told."""
    with pytest.raises(BadInput) as caught:
        parse(text, "hosts")
    assert caught.value.hint is not None
    message = caught.value.message
    assert say(message, "zh") != say(message)
    why = message.args.get("why", message)
    assert isinstance(why, Message)
    return {**message.args, "says": why.key.removeprefix("cluster.line-"), **why.args}


def test_a_range_keeps_its_zeros_and_its_order() -> None:
    assert names("node[08-11,3] head") == ["node08", "node09", "node10", "node11", "node3", "head"]
    assert names("r[1-2]n[01-02]") == ["r1n01", "r1n02", "r2n01", "r2n02"]
    assert names("node[1:3]") == ["node1", "node2", "node3"]
    assert names("a,b[1,3],c") == ["a", "b1", "b3", "c"]


def test_settings_hold_for_their_line_and_a_star_for_all() -> None:
    text = "* user=root cards=8\nhead port=2222 # the first\nbig[1-2] cards=16 jump=me@bastion:23,inner python=/opt/p\n"
    assert parse(text, "hosts").nodes == (
        Node("head", "head", user="root", port=2222, cards=8),
        Node("big1", "big1", user="root", cards=16, jump="me@bastion:23,inner", python="/opt/p"),
        Node("big2", "big2", user="root", cards=16, jump="me@bastion:23,inner", python="/opt/p"),
    )


def test_the_star_may_stand_anywhere() -> None:
    assert [node.user for node in parse("a\nb user=me\n* user=root", "hosts").nodes] == ["root", "me"]


def test_no_jump_host_is_a_way_of_its_own() -> None:
    nodes = parse("* jump=bastion\nnode01 jump=None\nnode02", "hosts").nodes
    assert [node.jump for node in nodes] == [NO_JUMP, "bastion"]
    assert "ProxyCommand=none" in argv_for(nodes[0], ["true"])
    assert not any("bastion" in word for word in argv_for(nodes[0], ["true"]))
    assert any(word.startswith("ProxyCommand=") and word.endswith("-- bastion") for word in argv_for(nodes[1], ["x"]))


def test_addresses_are_paired_with_names() -> None:
    nodes = parse("node[01-03] address=10.0.0.[1-2,9]", "hosts").nodes
    assert [(node.name, node.address) for node in nodes] == [
        ("node01", "10.0.0.1"),
        ("node02", "10.0.0.2"),
        ("node03", "10.0.0.9"),
    ]
    assert parse("fe80::1\n10.0.0.7", "hosts").nodes[0].address == "fe80::1"
    assert parse("a address=fe80::1%eth0", "hosts").nodes[0].address == "fe80::1%eth0"


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("worker-1 slots=8", Node("worker-1", "worker-1", cards=8)),
        ("[workers]\nw ansible_host=10.0.0.1 ansible_user=me ansible_port=2", Node("w", "10.0.0.1", user="me", port=2)),
        ("[910]\nbox", Node("box", "box")),
        ("data cards=0", Node("data", "data", cards=0)),
        ("me@box:2200", Node("box", "box", user="me", port=2200)),
        ("\ufeffbox\r\n".lstrip("\ufeff"), Node("box", "box")),
    ],
)
def test_lists_of_other_tools_are_read(text: str, node: Node) -> None:
    assert parse(text, "hosts").nodes == (node,)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a\nnode usr=root", {"line": 2, "text": "node usr=root", "says": "key-near", "key": "usr", "near": "user"}),
        ("node zzzz=1", {"says": "key", "known": ("user", "port", "jump", "cards", "address", "python")}),
        ("node[3-1]", {"says": "backwards", "range": "3-1"}),
        ("node[a-b]", {"says": "range", "range": "a-b"}),
        ("node[1-]", {"says": "range", "range": "1-"}),
        ("node[1-4", {"says": "name", "name": "node[1-4"}),
        ("a\nb\na", {"line": 3, "text": "a", "says": "twice", "name": "a", "first": 1}),
        ("a\nA", {"line": 2, "text": "A", "says": "same", "name": "A", "other": "a", "first": 1}),
        ("a\nb address=a.", {"says": "same", "name": "b", "other": "a", "first": 1}),
        ("a[1-2] address=b[1,1] port=22", {"says": "same", "name": "a2", "other": "a1", "first": 1}),
        ("a port=0", {"says": "number", "key": "port", "value": "0", "least": 1, "most": 65535}),
        ("a port=99999", {"says": "number", "key": "port", "value": "99999"}),
        ("a cards=many", {"says": "number", "key": "cards", "value": "many", "least": 0, "most": 1024}),
        ("a user=x user=y", {"says": "key-twice", "key": "user"}),
        ("a user=x b", {"says": "order", "word": "b"}),
        ("user=x", {"says": "no-name"}),
        ("a[1-2] address=10.0.0.1", {"says": "addresses", "names": 2, "addresses": 1}),
        ("[all:vars]", {"says": "heading", "heading": ":vars"}),
        ("-oProxyCommand=touch%20x", {"says": "name", "name": "-oProxyCommand=touch%20x"}),
        ("a -l", {"says": "name", "name": "-l"}),
        ("a user=-oX", {"says": "value", "key": "user", "value": "-oX"}),
        ("a jump=-J", {"says": "value", "key": "jump", "value": "-J"}),
        ("a address=-x", {"says": "name", "name": "-x"}),
        ("* address=10.0.0.1\na\nb", {"says": "address-for-all", "value": "10.0.0.1"}),
        ("* ansible_host=-oProxyCommand=touch\na", {"says": "address-for-all"}),
        ("a$(id)", {"says": "name", "name": "a$(id)"}),
        ("a;b", {"says": "name", "name": "a;b"}),
        ("# nobody\n\n", {"says": "cluster.no-nodes", "source": "hosts"}),
        ("* user=root", {"says": "cluster.no-nodes", "source": "hosts"}),
        (f"n[1-{MOST_NODES + 1}]", {"says": "too-many", "most": MOST_NODES}),
        ("n[1-99999999999999]", {"says": "range"}),
        ("n[1-4000]m[1-4000]", {"says": "too-many", "most": MOST_NODES}),
    ],
)
def test_what_is_wrong_with_a_line_is_said(text: str, wrong: dict[str, object]) -> None:
    assert wrong.items() <= refusal(text).items()


def test_containers_of_one_address_and_private_addresses_behind_other_hosts_are_nodes_of_their_own() -> None:
    text = "a address=m port=2201\nb address=m port=2202\nc address=10.0.0.1 jump=x\nd address=10.0.0.1 jump=y"
    assert [node.name for node in parse(text, "hosts").nodes] == ["a", "b", "c", "d"]


def test_a_file_that_is_not_there_is_bad_input_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read(str(tmp_path / "none"))
    assert caught.value.message.key == "cluster.no-inventory"
    assert caught.value.message.args["path"] == str(tmp_path / "none")
    assert caught.value.hint is not None and "--hosts -" in say(caught.value.hint)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput):
        read(str(tmp_path / "bytes"))
    with pytest.raises(BadInput):
        read(str(tmp_path))


def test_stdin_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"node[1-3]\n")))
    assert [node.name for node in read("-").nodes] == ["node1", "node2", "node3"]


def test_folded_names_are_read_again() -> None:
    text = fold(["head", *names("node[01-12,70] rack[1-2]n[1-3]")])
    assert sorted(names(text)) == sorted(["head", *names("node[01-12,70] rack[1-2]n[1-3]")])


def test_thousands_of_nodes_are_read_in_a_moment() -> None:
    began = time.perf_counter()
    assert len(names("* user=root\nn[0001-4096] cards=8 address=10.[1-16].0.[0-255]")) == MOST_NODES
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_inventory_of_any_editor_is_read(tmp_path: Path, encoding: str) -> None:
    place = tmp_path / "hosts"
    place.write_bytes("node[1-2]\r\n# 备注\r\n".encode(encoding))
    assert [node.name for node in read(str(place)).nodes] == ["node1", "node2"]


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ("node1\n".encode("utf-16-le"), "cluster.line-control"),  # without the mark that tells it
        (b"\xff\xff\xff", "cluster.inventory-no-text"),
        ("节点\n".encode("gbk"), "cluster.inventory-no-text"),
        (b"node1\n" * (1 << 20), "cluster.inventory-large"),
        (b"\x1b[31mnode1\n", "cluster.line-control"),
    ],
)
def test_a_file_that_is_no_text_is_refused_in_a_sentence(tmp_path: Path, data: bytes, key: str) -> None:
    place = tmp_path / "hosts"
    place.write_bytes(data)
    with pytest.raises(BadInput) as caught:
        read(str(place))
    why = caught.value.message.args["why"]
    assert isinstance(why, Message) and why.key == key
    assert say(caught.value.message).isprintable() and len(say(caught.value.message)) < 400


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,ip,cards\nnode1,10.0.0.1,8", "number-name"),
        ("node1,10.0.0.1,8", "number-name"),
        ("node1 8", "number-name"),
        ("node1 user root", "key-bare"),
        ("* port 2222", "key-bare"),
        ("node1 node2 Ansible_User root cards=8", "key-bare"),
        ("10.0.0.1 node1", "hosts-file"),
        ("10.0.0.1\tnode1.lan node1", "hosts-file"),
        ("node1,10.0.0.1", "hosts-file"),
        ("node1:8", "port-or-cards"),
        ("root@node[1-4]:16", "port-or-cards"),
        ("n" * 200_000, "long"),
        ("node1 python=/" + "n" * 200_000, "long"),
        ("node1 address=" + "n" * 200_000, "long"),
    ],
)
def test_a_line_of_another_kind_of_file_is_no_node(text: str, says: str) -> None:
    found = refusal(text)
    assert found["says"] == says
    assert max(len(value) for value in found.values() if isinstance(value, str)) < 100


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("[fd00::1]", Node("fd00::1", "fd00::1")),
        ("[fd00::1]:2222", Node("fd00::1", "fd00::1", port=2222)),
        ("root@[fe80::1%eth0]", Node("fe80::1%eth0", "fe80::1%eth0", user="root")),
        ("node1 address=[fd00::1]", Node("node1", "fd00::1")),
        ("node1:22", Node("node1", "node1", port=22)),
        ("10.0.0.1", Node("10.0.0.1", "10.0.0.1")),
    ],
)
def test_addresses_in_brackets_are_nodes(text: str, node: Node) -> None:
    assert parse(text, "hosts").nodes == (node,)


def test_several_addresses_on_one_line_are_several_nodes() -> None:
    assert names("10.0.0.1 10.0.0.2") == ["10.0.0.1", "10.0.0.2"]
