"""Asking many nodes at once: every one answers exactly once, in bounded time, and nothing is left running."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from npuenv.cli.common import Ui
from npuenv.cli.progress import report_pending
from npuenv.cluster import parallel_ssh
from npuenv.cluster.inventory import Node
from npuenv.cluster.parallel_ssh import ask
from npuenv.cluster.ssh import NodeFailure, Options, argv_for, deciding_line, failure_of, keeps_host_keys
from tests.cluster.scripted import Impatient, Nodes
from tests.support.scripted_ssh import TEXTS
from tests.support.sentences import sentence
from tests.support.waiting import PATIENCE_S, is_gone, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


KINDS = {"node05": "hangs", "node09": "denied", "node11": "no-python"}
HANGING = dict.fromkeys(["node01", "node02", "node03"], "hangs")


def node(name: str) -> Node:
    return Node(name, name)


def client(folder: Path, text: str) -> tuple[str, ...]:
    """A client that is a shell script; its last word is the command for the node."""
    path = folder / "client"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("unreachable", NodeFailure.UNREACHABLE),
        ("silent-net", NodeFailure.UNREACHABLE),
        ("jump-gone", NodeFailure.UNREACHABLE),
        ("refused", NodeFailure.REFUSED),
        ("through-jump", NodeFailure.REFUSED),
        ("not-found", NodeFailure.NOT_FOUND),
        ("denied", NodeFailure.DENIED),
        ("unknown-key", NodeFailure.HOST_KEY),
        ("changed-key", NodeFailure.CHANGED_KEY),
        ("banner", NodeFailure.UNREACHABLE),
        ("closed", NodeFailure.BROKEN),
        ("config", NodeFailure.CLIENT),
    ],
)
def test_what_ssh_prints_tells_the_troubles_apart(kind: str, failure: NodeFailure) -> None:
    text = TEXTS[kind].format(name="node07")
    assert failure_of(255, text, ("true",)) is failure
    assert deciding_line(text) in text and "@@@" not in deciding_line(text)
    assert failure_of(1, text, ("true",)) is None, "a command of the node's own may print the same"


def test_each_text_has_a_case_here() -> None:
    assert len(TEXTS) == 12


def test_every_node_answers_once_and_a_hung_one_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 24, KINDS, gives_captures=False)
    monkeypatch.setattr(parallel_ssh, "time", Impatient(nodes, ["node05"]))
    began = time.monotonic()
    asked = [node(name) for name in nodes.names]
    answers = list(ask(asked, ("python3", "-"), stdin=b"hello", limit_s=PATIENCE_S, parallel=8))
    assert time.monotonic() - began < 2 * PATIENCE_S
    assert sorted(answer.node.name for answer in answers) == nodes.names
    found = {answer.node.name: answer for answer in answers}
    assert {name: answer.failure for name, answer in found.items() if answer.failure} == {
        "node05": NodeFailure.TIMED_OUT,
        "node09": NodeFailure.DENIED,
        "node11": NodeFailure.NO_PYTHON,
    }
    assert found["node01"].out == b"hello" and found["node01"].code == 0
    assert found["node05"].seconds >= PATIENCE_S and found["node05"].code is None
    assert all(until(partial(is_gone, pid)) for _, pid, _ in nodes.calls())


@pytest.mark.parametrize("is_quiet", [False, True])
@pytest.mark.slow
def test_who_is_waited_for_is_named_and_nobody_where_all_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_quiet: bool
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 4, {"node02": "hangs", "node03": "hangs"}, gives_captures=False)
    wanted = "" if is_quiet else sentence("cluster.waiting", names="node[02-03]", count=2) + "\n"
    for first_s in (0.8, 10.0):  # later where this machine is too busy for the others to answer before
        asking = report_pending(Ui(lang="en", is_quiet=is_quiet), first_s=first_s)
        for names, limit_s in ((["node01"], 60), (nodes.names, 2 * first_s)):
            asked = asking([node(name) for name in names], ("python3", "-"), limit_s=limit_s)
            assert sorted(answer.node.name for answer in asked) == names
        out, err = capsys.readouterr()
        if err == wanted:
            break
    assert (out, err) == ("", wanted)


def test_never_more_at_once_than_asked_for(tmp_path: Path) -> None:
    mark = tmp_path / "running"
    mark.mkdir()
    # Each counts who is there together with it.
    script = f'touch "{mark}/$$"; sleep 0.05; ls "{mark}" | wc -l; rm "{mark}/$$"'
    answers = list(
        ask([node(str(n)) for n in range(12)], ("x",), limit_s=60, parallel=3, client=client(tmp_path, script))
    )
    assert len(answers) == 12
    assert max(int(answer.out) for answer in answers) <= 3


def test_large_answers_and_large_inputs_come_through_whole(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    answers = list(ask([node("a"), node("b")], ("x",), stdin=data, limit_s=60, client=client(tmp_path, "cat")))
    assert [answer.out == data for answer in answers] == [True, True]


def test_each_node_gets_its_own_words_and_input(tmp_path: Path) -> None:
    shell = client(tmp_path, 'for last; do :; done; eval "$last"; cat')
    nodes = [node("a b"), node("c'd")]
    answers = ask(
        nodes,
        lambda each: ("printf", "%s|", each.name),
        stdin=lambda each: each.name.encode(),
        limit_s=60,
        client=shell,
    )
    assert {answer.node.name: answer.out for answer in answers} == {"a b": b"a b|a b", "c'd": b"c'd|c'd"}


def test_one_that_never_stops_talking_is_stopped(tmp_path: Path) -> None:
    answers = list(ask([node("a")], ("x",), limit_s=60, client=client(tmp_path, "exec yes"), max_bytes=1 << 20))
    assert [answer.failure for answer in answers] == [NodeFailure.TOO_MUCH]
    assert answers[0].seconds < 60


def test_an_answer_does_not_wait_for_a_stranger_that_holds_the_pipe(tmp_path: Path) -> None:
    """As a shared connection that ssh leaves in the background would."""
    mark = tmp_path / "apart"
    # It ends only when the other one is in a session of its own: what is still in the client's group ends with it.
    script = (
        f"setsid sh -c 'touch {mark}; exec sleep 600' & echo $!; while [ ! -e {mark} ]; do sleep 0.01; done; exit 0"
    )
    answers = list(ask([node("a")], ("x",), limit_s=60, client=client(tmp_path, script)))
    assert answers[0].failure is None and answers[0].code == 0
    assert answers[0].seconds < 60
    psutil.Process(int(answers[0].out)).kill()


def test_one_that_reads_nothing_gives_its_answer_all_the_same(tmp_path: Path) -> None:
    answers = list(
        ask([node("a")], ("x",), stdin=bytes(1 << 22), limit_s=60, client=client(tmp_path, "echo no; exit 3"))
    )
    assert [(answer.code, answer.out, answer.failure) for answer in answers] == [(3, b"no\n", None)]


def test_closing_the_iterator_ends_all_clients_and_what_they_started(tmp_path: Path) -> None:
    script = (
        f'for name; do :; done; sleep 600 & echo $! $$ >> {tmp_path}/pids; case "$name" in *x*) exit 0;; esac; wait'
    )
    answers = ask(
        [node(str(number)) for number in range(5)],
        lambda each: ("x",) if each.name == "0" else ("y",),
        limit_s=600,
        client=client(tmp_path, script),
    )
    assert next(answers).node.name == "0"
    pids = tmp_path / "pids"
    assert until(lambda: len(pids.read_text().splitlines()) == 5)
    answers.close()
    assert all(until(partial(is_gone, int(pid))) for pid in pids.read_text().split())


def test_an_interrupt_while_waiting_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 4, HANGING, gives_captures=False)

    def interrupted() -> None:
        for answer in ask([node(name) for name in nodes.names], ("x",), limit_s=600):
            assert answer.node.name == "node04"
            assert until(lambda: len(nodes.calls()) == 4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(until(partial(is_gone, pid)) for _, pid, _ in nodes.calls())


def test_input_that_is_kept_open_has_no_end_as_long_as_somebody_waits(tmp_path: Path) -> None:
    """The command sees no end of its input, however long it waits for one."""
    # `timeout` ends it with 124 where the input has no end.
    script = "head -c 5 > /dev/null; echo got; timeout 1 cat > /dev/null; echo $?"
    answers = list(
        ask([node("a")], ("x",), stdin=b"hello", limit_s=60, client=client(tmp_path, script), keeps_stdin=True)
    )
    assert [(answer.out, answer.failure) for answer in answers] == [(b"got\n124\n", None)]


def test_a_client_that_is_not_there_is_said_for_each_node() -> None:
    answers = list(ask([node("a"), node("b")], ("x",), limit_s=5, client=("/no/such/ssh",)))
    assert [(answer.failure, answer.code) for answer in answers] == [(NodeFailure.CLIENT, None)] * 2
    assert answers[0].err == "/no/such/ssh: No such file or directory"


def test_a_client_that_is_killed_is_a_broken_connection(tmp_path: Path) -> None:
    answers = list(ask([node("a")], ("x",), limit_s=60, client=client(tmp_path, "kill -9 $$")))
    assert [answer.failure for answer in answers] == [NodeFailure.BROKEN]


def test_nobody_to_ask_is_no_answer() -> None:
    assert list(ask([], ("x",), limit_s=1)) == []


def test_the_command_line_keeps_the_users_settings_and_asks_nothing() -> None:
    plain = argv_for(node("node01"), ("python3", "-c", "print('a b')"))
    assert plain[0] == "ssh" and plain[-3:] == ["--", "node01", "python3 -c 'print('\"'\"'a b'\"'\"')'"]
    assert "-F" not in plain and "-p" not in plain and "-l" not in plain
    settings = plain[plain.index("-o") + 1 : -3 : 2]
    assert "BatchMode=yes" in settings and "StrictHostKeyChecking=yes" in settings and "ForwardAgent=no" in settings
    assert not any(word.startswith("StrictHostKeyChecking=") and word != "StrictHostKeyChecking=yes" for word in plain)


def test_the_command_line_says_what_the_inventory_says() -> None:
    there = Node("n1", "10.0.0.1", user="me", port=2222, jump="first,you@last:23")
    argv = argv_for(there, ("true",), options=Options(config="/c%f", connect_s=3))
    assert argv[1:3] == ["-F", "/c%f"]
    assert "HostName=10.0.0.1" in argv and "ConnectTimeout=3" in argv
    assert argv[argv.index("-l") + 1] == "me" and argv[argv.index("-p") + 1] == "2222"
    proxy = next(word for word in argv if word.startswith("ProxyCommand="))
    assert proxy.startswith("ProxyCommand=ssh -F /c%%f ") and proxy.endswith(" -W '[%h]:%p' -- last")
    assert "-l you -p 23" in proxy and "StrictHostKeyChecking=yes" in proxy


def expanded(text: str, host: str, port: str) -> list[str]:
    """The words of a ProxyCommand after ssh has put in the place that it leads to, and the shell has cut it."""
    known = {"%": "%", "h": host, "p": port}
    return shlex.split(re.sub(r"%(.)", lambda found: known[found[1]], text.removeprefix("ProxyCommand=")))


def test_every_jump_host_is_reached_with_our_settings_through_the_ones_before_it() -> None:
    there = Node("n1", "10.0.0.1", jump="me@one:2222,two,three")
    argv, asked = argv_for(there, ("true",)), ("10.0.0.1", "22")
    for hop, port in (("three", "22"), ("two", "22"), ("one", "2222")):
        argv = expanded(next(word for word in argv if word.startswith("ProxyCommand=")), *asked)
        assert argv[argv.index("-W") + 1] == "[{}]:{}".format(*asked) and argv[-2:] == ["--", hop]
        assert "StrictHostKeyChecking=yes" in argv and "ForwardAgent=no" in argv and "-J" not in argv
        asked = (hop, port)
    assert not any(word.startswith("ProxyCommand=") for word in argv)
    assert argv[argv.index("-l") + 1 : argv.index("-l") + 4] == ["me", "-p", "2222"]


def test_the_interface_of_a_link_local_address_is_no_key_of_ssh() -> None:
    assert "HostName=fe80::1%%eth0" in argv_for(Node("n1", "fe80::1%eth0"), ("true",))


@pytest.mark.parametrize(
    ("program", "shown"),
    [("~/my env/bin/python3", "~/'my env/bin/python3' -c 'a b'"), ("/a b/python3", "'/a b/python3' -c 'a b'")],
)
def test_the_home_of_the_user_there_is_left_to_the_shell_there(program: str, shown: str) -> None:
    assert argv_for(node("n1"), (program, "-c", "a b"))[-1] == shown


@pytest.mark.parametrize("language", [None, "zh_CN.UTF-8"])
def test_no_language_is_put_upon_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str | None
) -> None:
    """Debian's configuration of ssh hands on all of LC_*, and so do most."""
    for name in [name for name in os.environ if name.startswith("LC_")]:
        monkeypatch.delenv(name)
    if language:
        monkeypatch.setenv("LC_ALL", language)
    (answer,) = ask([node("a")], ("x",), limit_s=60, client=client(tmp_path, "env | grep ^LC_; :"))
    assert answer.out.decode().split() == ([f"LC_ALL={language}"] if language else [])


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens. It is held: else somebody could begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client here")
@pytest.mark.parametrize(
    ("setting", "failure", "line"),
    [
        ("LogLevel QUIET", NodeFailure.REFUSED, "Connection refused"),
        ("RemoteCommand uptime", NodeFailure.CLIENT, "Cannot execute command-line and remote command."),
    ],
)
def test_what_the_configuration_forbids_to_say_is_said(
    tmp_path: Path, closed_port: int, setting: str, failure: NodeFailure, line: str
) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host *\n  {setting}\n")
    there = Node("there", "127.0.0.1", port=closed_port)
    (answer,) = ask([there], ("true",), limit_s=60, options=Options(config=str(config)))
    assert answer.failure is failure and line in deciding_line(answer.err)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client here")
def test_ssh_itself_says_whether_it_keeps_keys(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host bastion node01\n  UserKnownHostsFile /dev/null\n")
    options = Options(config=str(config))
    found = [
        keeps_host_keys(each, options=options)
        for each in (node("node01"), node("node02"), Node("node02", "10.0.0.2", jump="me@bastion:23"))
    ]
    assert found == [False, True, False]
    assert keeps_host_keys(node("node01"), client=("/no/such/ssh",)), "what is not told is no reason"


SHED = "kex_exchange_identification: Connection closed by remote host"


@pytest.mark.parametrize(("drops", "calls", "failure"), [(2, 3, None), (9, 4, NodeFailure.BROKEN)])
def test_a_connection_that_a_busy_server_drops_is_tried_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drops: int, calls: int, failure: NodeFailure | None
) -> None:
    monkeypatch.setattr(parallel_ssh, "_PAUSE_S", (0.01, 0.05))
    script = f'echo x >> {tmp_path}/calls; [ "$(wc -l < {tmp_path}/calls)" -gt {drops} ] && exec cat'
    way = client(tmp_path, f'{script}; echo "{SHED}" >&2; exit 255')
    (answer,) = ask([node("a")], ("x",), stdin=b"hello", limit_s=60, client=way)
    assert (answer.failure, answer.out) == (failure, b"" if failure else b"hello")
    assert len((tmp_path / "calls").read_text().split()) == calls
    assert SHED not in answer.err if failure is None else answer.err.strip() == SHED


def test_what_is_dropped_is_not_tried_again_after_its_limit_nor_once_it_has_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, rest_s in ((f'echo "{SHED}" >&2', 60.0), (f'echo said; echo "{SHED}" >&2', 0.01)):
        monkeypatch.setattr(parallel_ssh, "_PAUSE_S", (rest_s, rest_s))
        way = client(tmp_path, f"echo x >> {tmp_path}/calls; {text}; exit 255")
        (answer,) = ask([node("a")], ("x",), limit_s=60, client=way)
        assert answer.failure is NodeFailure.BROKEN
    assert len((tmp_path / "calls").read_text().split()) == 2


def test_a_try_that_its_limit_cuts_short_leaves_what_the_one_before_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaping:
        def monotonic(self) -> float:
            tries = (tmp_path / "calls").read_text().split() if (tmp_path / "calls").exists() else []
            return time.monotonic() + (3600.0 if len(tries) == 2 else 0.0)

    monkeypatch.setattr(parallel_ssh, "_PAUSE_S", (0.01, 0.05))
    monkeypatch.setattr(parallel_ssh, "time", Leaping())
    monkeypatch.delattr(os, "pidfd_open", raising=False)  # then the clock is read all the time
    script = f'echo x >> {tmp_path}/calls; [ "$(wc -l < {tmp_path}/calls)" -gt 1 ] && exec sleep 600'
    way = client(tmp_path, f'{script}; echo "{SHED}" >&2; exit 255')
    (answer,) = ask([node("a")], ("x",), limit_s=600, client=way)
    assert (answer.failure, answer.err.strip()) == (NodeFailure.BROKEN, SHED)


NO_GREETING = "Connection timed out during banner exchange"
IN_KEX = "ssh_dispatch_run_fatal: Connection to 10.0.0.1 port 22: Connection timed out"
NO_ANSWER = "ssh: connect to host 10.0.0.1 port 22: Connection timed out"


@pytest.mark.parametrize(
    ("text", "connect_s"),
    [
        (NO_GREETING, ["10", "20"]),
        (IN_KEX, ["10", "20"]),
        (NO_ANSWER, ["10"]),  # nobody may be there
        ("Permission denied (publickey).", ["10"]),
    ],
)
def test_a_loaded_server_is_given_twice_the_time_once(tmp_path: Path, text: str, connect_s: list[str]) -> None:
    script = f'given="${{*##*ConnectTimeout=}}"; echo "${{given%% *}}" >> {tmp_path}/given; echo "{text}" >&2; exit 255'
    (answer,) = ask([node("late")], ("x",), limit_s=60, client=client(tmp_path, script))
    assert answer.failure is failure_of(255, text, ("x",))
    assert (tmp_path / "given").read_text().split() == connect_s


def test_the_next_nodes_are_asked_while_the_caller_works_on_an_answer(tmp_path: Path) -> None:
    way = client(tmp_path, f'case "$*" in *" last "*) touch {tmp_path}/begun;; esac')
    answers = ask([node("first"), node("last")], ("x",), limit_s=60, parallel=1, client=way)
    assert next(answers).node.name == "first"
    assert until(lambda: (tmp_path / "begun").exists())
    assert [each.node.name for each in answers] == ["last"]


def test_few_open_files_make_fewer_talks_at_once_and_no_error(tmp_path: Path) -> None:
    way = client(tmp_path, "echo y")
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (72, 80))\n"
        "from npuenv.cluster.parallel_ssh import ask\nfrom npuenv.cluster.inventory import Node\n"
        "nodes = [Node(str(n), str(n)) for n in range(40)]\n"
        f"found = list(ask(nodes, ('x',), limit_s=60, client={way!r}, parallel=40))\n"
        "print(sum(each.out == b'y\\n' for each in found), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["40", "80"]


@pytest.mark.slow
def test_two_hundred_nodes_cost_few_descriptors_and_little_memory(tmp_path: Path) -> None:
    process = psutil.Process()
    before = process.num_fds()
    most = 0
    for _ in ask(
        [node(str(n)) for n in range(200)], ("x",), limit_s=60, parallel=16, client=client(tmp_path, "echo y")
    ):
        most = max(most, process.num_fds())
    assert most - before < 16 * 4 + 8
    assert process.num_fds() <= before + 1
