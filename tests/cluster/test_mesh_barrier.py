"""Nodes begin at one moment: who is waited for, who is not, and that the word reaches those that already run."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from npuenv.cluster.inventory import Node
from npuenv.cluster.mesh.running import Barrier
from npuenv.cluster.parallel_ssh import ask

if TYPE_CHECKING:
    from pathlib import Path


def test_nodes_are_let_in_together_once_all_are_ready_or_ended() -> None:
    barrier = Barrier(["a", "b", "c"], wait_s=60, lead_s=0.5)
    barrier.receive("a", {"ready": time.time() + 100})
    barrier.receive("b", {"tool": "hccn_tool"})
    assert barrier.messages() == {}
    barrier.remove("c")
    assert barrier.messages() == {}
    barrier.receive("b", {"ready": time.time()})
    go = {name: json.loads(word) for name, word in barrier.messages().items()}
    assert set(go) == {"a", "b"} and go["a"]["begin_at"] == go["b"]["begin_at"] == go["a"]["sent"] + 0.5
    assert 99 < go["a"]["low"] <= 100 and -1 < go["b"]["low"] <= 0
    assert barrier.messages() == {}


def test_who_is_not_ready_in_time_is_not_let_in_any_more() -> None:
    barrier = Barrier(["a", "b"], wait_s=0, lead_s=0)
    barrier.receive("a", {"ready": time.time()})
    assert set(barrier.messages()) == {"a"}
    barrier.receive("b", {"ready": time.time()})
    assert barrier.messages() == {"b": b"{}\n"}
    assert barrier.messages() == {}


def test_what_is_said_later_reaches_commands_that_already_run(tmp_path: Path) -> None:
    client = tmp_path / "client.py"
    client.write_text(
        "import sys\nfor _ in range(3):\n    print(sys.argv[-2], sys.stdin.readline().strip(), flush=True)\n",
        encoding="utf-8",
    )
    heard: list[bytes] = []
    # What is said, to a stranger too, once that many lines have come, in however many pieces.
    words = {2: {"a": b"go a\nto ", "b": b"go b\n", "c": b"go c\n"}, 4: {"a": b"node05\n", "b": b"b ends\n"}}

    def further() -> dict[str, bytes]:
        return words.pop(b"".join(heard).count(b"\n"), {})

    answers = ask(
        [Node("a", "a"), Node("b", "b")],
        ("x",),
        stdin=b"first\n",
        limit_s=60,
        client=(sys.executable, str(client)),
        keeps_stdin=True,
        on_output=lambda node, chunk: heard.append(chunk),
        more=further,
    )
    said = {answer.node.name: answer.out.decode().splitlines() for answer in answers}
    assert said == {"a": ["a first", "a go a", "a to node05"], "b": ["b first", "b go b", "b b ends"]}
