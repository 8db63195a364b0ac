"""Asking many nodes at its edges: whose time is whose, what is kept of what is said, and what the client is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from npuenv.cluster import parallel_ssh
from npuenv.cluster.inventory import Node
from npuenv.cluster.node_results import ClusterReport, NodeReport
from npuenv.cluster.parallel_ssh import ask
from npuenv.cluster.ssh import (
    NodeFailure,
    Options,
    argv_for,
    command_line,
    deciding_line,
    failing_hop,
    failure_line,
    failure_of,
    jump_host,
)
from npuenv.core.messages import say
from npuenv.report.cluster import group_nodes, next_of, says_of
from tests.cluster.test_parallel_ssh import SHED, client, expanded, node
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.more_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.more_s


def test_what_the_caller_does_with_an_answer_is_not_taken_off_the_others_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(parallel_ssh, "time", clock)
    script = f'for last; do :; done; [ "$last" = first ] || while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo y'
    found = []
    for answer in ask([node("a"), node("b")], lambda each: ("first",) if each.name == "a" else ("x",), limit_s=60,
                      client=client(tmp_path, script)):  # fmt: skip
        found.append((answer.node.name, answer.out, answer.failure))
        if answer.node.name == "a":
            clock.more_s += 600.0
            (tmp_path / "go").touch()
    assert found == [("a", b"y\n", None), ("b", b"y\n", None)]


def test_of_long_complaints_the_end_is_kept(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 3000 ]; do echo complaint $i ---------------------------- >&2; i=$((i+1)); done"
    (answer,) = ask([node("a")], ("x",), limit_s=60, client=client(tmp_path, script))
    assert len(answer.err) == 1 << 16
    assert answer.err.endswith("complaint 2999 ----------------------------\n")


def test_the_client_asks_no_window_for_a_password_and_is_given_the_users_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    (answer,) = ask([node("a")], ("x",), limit_s=60, client=client(tmp_path, 'echo "$LC_ALL $SSH_ASKPASS_REQUIRE"'))
    assert answer.out == b"zh_CN.UTF-8 never\n"


def test_at_least_one_is_asked_at_a_time(tmp_path: Path) -> None:
    answers = ask([node("a"), node("b")], ("x",), limit_s=60, parallel=0, client=client(tmp_path, "echo y"))
    assert [answer.out for answer in answers] == [b"y\n", b"y\n"]


def test_input_stays_open_for_a_client_that_is_tried_again_after_one_that_did_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_ssh, "_PAUSE_S", (0.01, 0.05))
    data = bytes(1 << 20)
    drop = f'[ -e {tmp_path}/mark ] || {{ touch {tmp_path}/mark; exec 0<&-; echo "{SHED}" >&2; exit 255; }}'
    # `timeout` ends it with 124 where the input has no end.
    script = f"{drop}; head -c {len(data)} | wc -c; timeout 0.5 cat > /dev/null; echo $?"
    way = client(tmp_path, script)
    (answer,) = ask([node("a")], ("x",), stdin=data, limit_s=60, client=way, keeps_stdin=True)
    assert (answer.out.split(), answer.failure) == ([b"%d" % len(data), b"124"], None)


@pytest.mark.parametrize("code", [126, 127])
def test_an_interpreter_that_cannot_be_run_is_no_python_and_another_program_has_its_own_code(code: int) -> None:
    for command in (("python3", "-"), ("/opt/env/bin/python3.11",), ("~/env/bin/python",)):
        assert failure_of(code, "", command) is NodeFailure.NO_PYTHON
    assert failure_of(code, "", ("/opt/python3/bin/ray", "status")) is None
    assert failure_of(code, "", ()) is None


def test_settings_of_the_caller_come_before_ours_because_ssh_takes_the_first() -> None:
    argv = argv_for(node("n1"), ("true",), options=Options(settings=("ServerAliveInterval=60",)))
    assert [word for word in argv if word.startswith("ServerAliveInterval=")] == [
        "ServerAliveInterval=60",
        "ServerAliveInterval=5",
    ]


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("hello\nusage: ssh [-46AaCfGgKkMNnqsTtVvXxYy]\n", NodeFailure.CLIENT),
        ("ssh: connect to host a port 22: Connection refused\nlost connection", NodeFailure.REFUSED),
        ("a: Connection refused\nlost connection", NodeFailure.REFUSED),
        ("the port said: Connection refused by policy of the house", NodeFailure.BROKEN),
        ("ssh_dispatch_run_fatal: Connection to 10.0.0.1 port 22: Connection timed out", NodeFailure.UNREACHABLE),
        ("Connection to 10.0.0.1 port 22 timed out", NodeFailure.UNREACHABLE),
        ("Timeout, server 10.0.0.1 not responding.", NodeFailure.BROKEN),
    ],
)
def test_a_reason_is_found_on_whichever_line_it_stands(text: str, failure: NodeFailure) -> None:
    assert failure_of(255, text, ("true",)) is failure


def test_without_a_known_reason_the_last_line_that_is_no_decoration_decides() -> None:
    assert deciding_line("first\nlast words\n@@@@@\n\nAuthorized uses only\n") == "last words"
    assert deciding_line("@@@@@\n") == ""


def test_the_way_through_a_jump_host_keeps_the_one_forwarding_that_it_is() -> None:
    argv = argv_for(Node("n1", "10.0.0.1", jump="one,two"), ("true",))
    assert "ClearAllForwardings=yes" in argv
    for _ in range(2):
        argv = expanded(next(word for word in argv if word.startswith("ProxyCommand=")), "10.0.0.1", "22")
        assert "ClearAllForwardings=no" in argv and "ClearAllForwardings=yes" not in argv


@pytest.mark.parametrize(
    "text",
    [
        "Authorized users only. All activities may be monitored and reported.\n",  # openEuler, EulerOS
        "** WARNING: connection is not using a post-quantum key exchange algorithm.\n** This session may be\n",
    ],
)
def test_a_greeting_is_no_reason(text: str) -> None:
    assert deciding_line(text) == ""
    nologin = b"This account is currently not available.\n"
    assert failure_line(text, nologin, NodeFailure.BROKEN) == "This account is currently not available."
    assert failure_line(text + "noise of .cshrc\n", b"", NodeFailure.TIMED_OUT) == ""
    assert failure_line("noise of .cshrc\n", nologin, None) == "noise of .cshrc · " + nologin.decode().strip()
    assert failure_line("sh: python3: not found\n", b"Welcome\n", NodeFailure.NO_PYTHON) == "sh: python3: not found"


PROXY_DIED = "Connection closed by UNKNOWN port 65535\n"


@pytest.mark.parametrize(
    ("text", "failure", "at"),
    [
        ("ssh: Could not resolve hostname bastion: Name or service not known\n", NodeFailure.NOT_FOUND, "bastion"),
        ("ssh: connect to host bastion port 22: No route to host\n" + PROXY_DIED, NodeFailure.UNREACHABLE, "bastion"),
        ("ssh: connect to host 9.9.9.9 port 22: Connection refused\n" + PROXY_DIED, NodeFailure.REFUSED, "9.9.9.9"),
        ("ops@Bastion: Permission denied (publickey).\n" + PROXY_DIED, NodeFailure.DENIED, "Bastion"),
        ("No ED25519 host key is known for [bastion]:2222 and you ...\n", NodeFailure.HOST_KEY, "bastion"),
        (
            "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key for bastion has changed\n",
            NodeFailure.CHANGED_KEY,
            "bastion",
        ),
        (
            "channel 0: open failed: administratively prohibited: open failed\nstdio forwarding failed\n" + PROXY_DIED,
            NodeFailure.FORBIDDEN,
            "bastion",
        ),
        (
            "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n",
            NodeFailure.REFUSED,
            "",
        ),
        ("root@10.0.0.1: Permission denied (publickey).\n", NodeFailure.DENIED, ""),
        ("No ED25519 host key is known for [10.0.0.1]:22 and you ...\n", NodeFailure.HOST_KEY, ""),
        # The node itself, by the HostName of the user's configuration.
        ("ssh: connect to host 10.9.9.9 port 22: Connection refused\n", NodeFailure.REFUSED, ""),
    ],
)
def test_a_way_that_ends_at_the_jump_host_is_not_the_nodes_fault(text: str, failure: NodeFailure, at: str) -> None:
    node = Node("node1", "10.0.0.1", jump="first,ops@bastion:2222")
    assert failure_of(255, text, ("true",)) is failure
    assert failing_hop(node, text) == at


def test_what_is_proposed_to_type_leads_where_we_go() -> None:
    node = Node("node1", "10.0.0.1", user="root", port=2222, jump="first,ops@bastion:23")
    way = "-o ProxyJump=first,ops@bastion:23 -p 2222 root@10.0.0.1"
    assert (command_line(node, "ssh"), command_line(Node("node1", "node1"), "ssh")) == (f"ssh {way}", "ssh node1")
    assert command_line(jump_host(node, "bastion"), "ssh") == "ssh -o ProxyJump=first -p 23 ops@bastion"
    assert command_line(jump_host(node, "1.2.3.4"), "ssh") == "ssh 1.2.3.4"

    def following(failure: NodeFailure, line: str = "", at: str = "") -> str:
        found = next_of(ClusterReport((NodeReport(node, failure=failure, line=line, at=at),)), "AGAIN")
        return say(found) if found else ""

    assert says(following(NodeFailure.DENIED), "cluster.next-denied", ssh=f"ssh {way}", copy_id=f"ssh-copy-id {way}")
    assert f"`ssh {way} true`" in following(NodeFailure.TOO_MUCH)
    assert "`ssh node1 true`" in following(NodeFailure.CLIENT), "what is wrong is set for its name"
    assert f"`ssh -F FILE {way}`" in following(NodeFailure.NO_KEYS)
    assert "ping" not in following(NodeFailure.UNREACHABLE) and f"`ssh {way}`" in following(NodeFailure.UNREACHABLE)
    changed = "Host key for alias.lan has changed and you have requested strict checking."
    assert "ssh-keygen -R alias.lan`" in following(NodeFailure.CHANGED_KEY, changed)
    assert "ssh-keygen -R '[10.0.0.1]:2222'`" in following(NodeFailure.CHANGED_KEY)
    assert "ssh-keygen -R" not in following(NodeFailure.HOST_KEY), "there is no old key to take away"
    assert "`ssh -o ProxyJump=first -p 23 ops@bastion true`" in following(NodeFailure.DENIED, at="bastion")
    assert says(following(NodeFailure.FORBIDDEN, at="bastion"), "cluster.next-forbidden", host="bastion")


def test_nodes_behind_a_jump_host_that_fails_are_told_together_and_not_with_others() -> None:
    nodes = [
        NodeReport(Node(name, name), failure=NodeFailure.REFUSED, at=at)
        for name, at in (("a", "b"), ("c", "b"), ("d", ""))
    ]
    told = [say(says_of(group)[1]) for group in group_nodes(nodes)]
    at_b, at_d = (sentence("cluster.trouble-refused", address=name) for name in ("b", "d"))
    on_the_way = sentence("cluster.trouble-on-the-way", host="b", says=at_b)
    assert told == [
        sentence("cluster.node-silent", names="a, c", count=2, says=on_the_way),
        sentence("cluster.node-silent", names="d", count=1, says=at_d),
    ]
