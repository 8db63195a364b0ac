"""`npuenv cluster mesh` as a user runs it, on a cluster of scripted programs: reports, exit codes, going on later."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from npuenv.app.mesh import MeshOptions, resume_command
from npuenv.cli import main
from npuenv.cli.cluster_mesh import report_words
from npuenv.cli.progress import PingBar
from npuenv.cluster.mesh import MeshDevice, PingOutcome, Results
from npuenv.cluster.mesh.running import load_results, save_results
from tests.cluster.mesh_world import Direct, World
from tests.support.own_signals import as_from_a_terminal, interruptible
from tests.support.sentences import part, says, sentence
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the cluster of some shape, and lets this process find its programs."""

    def make(*shape: int) -> World:
        folder = tmp_path / "world"
        folder.mkdir()
        world = World(folder, shape)
        for name, value in world.environ.items():
            monkeypatch.setenv(name, value)
        return world

    return make


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ssh nor a program on the nodes: what they say is the same."""
    monkeypatch.setattr("npuenv.cluster.mesh.running.SshRunner", Direct)


def mesh(world: World, *words: str) -> int:
    return main(["cluster", "mesh", "--hosts", str(world.hosts), "--lang", "en", *words])


def document(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    code = mesh(world, "--json", *words)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["exit"] == code
    return found


def require_in_order(world: World) -> None:
    """hccn_tool never ran twice at once on a node."""
    made = world.made()
    assert not any(ping.was_second for ping in made)
    for node in world.nodes:
        own = sorted((ping.began_s, ping.ended_s) for ping in made if ping.node == node)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))


def test_a_sound_cluster_is_pinged_once_each_way_and_is_fine(
    make_world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(2, 1, 1)
    assert mesh(world) == 0
    out, err = capsys.readouterr()
    all_well: dict[str, Any] = {"devices": 4, "planned": 12, "ok": 12, "lossy": 0, "failed": 0, "unknown": 0}
    assert says(out, "mesh.counts", mode=sentence("mesh.mode-full"), **all_well)
    assert says(err, "mesh.estimate", pings=12, devices=4, nodes=3, names="node[01-03]", most=6)
    addresses = world.addresses.values()
    wanted = {(one, other) for one in addresses for other in addresses if one != other}
    assert Counter((ping.source, ping.target) for ping in world.made()) == Counter(wanted)
    require_in_order(world)


@pytest.mark.usefixtures("direct")
def test_a_node_that_is_to_have_no_cards_takes_no_part(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(2, 2)
    with world.hosts.open("a") as file:
        file.write("data cards=0\n")
    found = document(world, capsys)
    assert (found["exit"], found["missing"]) == (0, [])


@pytest.mark.usefixtures("direct")
def test_planted_faults_are_named_and_losses_are_a_warning(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(2, 2, 2)
    world.kill_card("node02:1")
    world.plant("failed", [("node01:0", "node03:0")])
    world.plant("lossy", [("node03:1", "node01:1")])
    found = document(world, capsys)
    assert found["exit"] == 1
    assert found["summary"] == {"devices": 6, "planned": 30, "ok": 18, "lossy": 1, "failed": 11, "unknown": 0}
    assert [(each["kind"], each["about"]["nodes"], each["about"]["cards"]) for each in found["culprits"]] == [
        ("card", ["node02"], [1]),
        ("one-way", ["node01", "node03"], [0, 0]),
    ]
    assert [(each["kind"], each["about"]["devices"]) for each in found["lossy"]] == [("one-way", [5, 1])]
    assert found["matrix"] == ["-ooffo", "o-ofoo", "oo-foo", "fff-ff", "ooof-o", "olofo-"]
    lines = {(each["from"], each["to"]): each["line"] for each in found["pings"]}
    assert lines[0, 4] == "time out: 3 packets transmitted, 0 received, 100.00% packet loss"
    assert lines[5, 1] == "3 packets transmitted, 2 received, 33.33% packet loss"
    require_in_order(world)


@pytest.mark.usefixtures("direct")
def test_packets_lost_alone_are_no_problem(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(1, 1, 1)
    world.plant("lossy", [("node01:0", "node02:0")])
    assert mesh(world) == 0
    way = sentence("mesh.kind-one-way", one="node01 card 0 (10.0.0.1)", other="node02 card 0 (10.1.0.1)")
    assert says(capsys.readouterr().out, "mesh.lossy", what=way)


@pytest.mark.usefixtures("direct")
def test_the_first_packet_to_a_new_address_is_no_alarm_and_few_packets_are_a_problem(
    make_world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(1, 1, 1)
    world.plant("cold", [(one, other) for one in world.addresses for other in world.addresses if one != other])
    found = document(world, capsys)
    assert (found["exit"], found["summary"]["ok"], found["lossy"]) == (0, 6, [])
    assert len(world.made()) == 12
    require_in_order(world)
    world.plant("weak", [("node02:0", "node01:0"), ("node03:0", "node01:0")])
    found = document(world, capsys)
    assert (found["exit"], found["summary"]["failed"]) == (1, 2)
    at_it = sentence("mesh.at-receives", one="node01 card 0 (10.0.0.1)")
    assert says(found["culprits"][0]["says"], "mesh.weak", what=at_it)


@pytest.mark.slow
def test_more_nodes_than_may_be_asked_at_once_take_turns(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(1, 1, 1)
    assert document(world, capsys, "--parallel", "2")["summary"]["ok"] == 6
    require_in_order(world)


@pytest.mark.slow
def test_what_a_login_shell_says_without_a_line_end_hides_nothing(
    make_world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(1, 1)
    (world.folder / "banner").touch()
    assert document(world, capsys)["summary"]["ok"] == 2
    (world.folder / "node02" / "hccn_tool").unlink()
    (world.folder / "hccn_tool").rename(world.folder / "node01" / "hccn_tool")
    missing = document(world, capsys)["missing"]
    assert [(each["node"], each["says"]) for each in missing] == [("node02", sentence("mesh.why-no-tool"))]


def test_a_tool_out_of_the_users_reach_is_not_said_to_be_missing(
    make_world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(1, 1)
    (world.folder / "hccn_tool").chmod(0o644)
    missing = document(world, capsys)["missing"]
    assert {each["says"] for each in missing} == {sentence("mesh.why-not-allowed")}


@pytest.mark.usefixtures("direct")
def test_a_sample_says_what_it_does_not_exclude(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(4, 4)
    world.kill_card("node01:2")
    found = document(world, capsys, "--sampled")
    assert (found["mode"], found["summary"]["planned"]) == ("sampled", 16)
    assert [(each["kind"], each["about"]["devices"]) for each in found["culprits"]] == [("card", [2])]
    assert sentence("mesh.limit-sampled") in found["limits"]
    times = Counter(end for ping in world.made() for end in (ping.source, ping.target))
    assert max(times.values()) == 4


@pytest.mark.slow
def test_what_could_not_be_tried_is_unknown_and_not_fine(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(2, 2, 2)
    (world.folder / "down.node02").touch()
    del world.addresses["node03:1"]
    world.plant()
    found = document(world, capsys)
    assert found["exit"] == 3
    absent = {(each["node"], each["card"]): each["says"] for each in found["missing"]}
    why = sentence("cluster.trouble-unreachable", address="node02")
    assert says(absent["node02", None], "mesh.why-trouble", says=why, line=part("connect to host node02"))
    assert absent["node03", 1] == sentence("mesh.why-no-address")
    assert found["summary"]["ok"] == found["summary"]["planned"] == 6


@pytest.mark.usefixtures("direct")
def test_two_devices_of_one_address_are_a_problem_and_not_pinged(
    make_world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(1, 1, 1, 1)
    world.addresses["node03:0"] = world.addresses["node01:0"]
    world.plant()
    found = document(world, capsys)
    assert found["exit"] == 1
    assert {(each["node"], each["says"]) for each in found["missing"]} == {
        ("node01", sentence("mesh.why-same-address", ip="10.0.0.1", others="node03 card 0")),
        ("node03", sentence("mesh.why-same-address", ip="10.0.0.1", others="node01 card 0")),
    }
    assert {ping.target for ping in world.made()} == {"10.1.0.1", "10.3.0.1"}


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("permission denied: pls check this cmd run permission.", "mesh.why-permission"),
        ("Please specify a valid mode.", "mesh.why-grammar"),
    ],
)
def test_a_node_whose_tool_refuses_is_named_with_its_words(
    make_world: Any, capsys: pytest.CaptureFixture[str], text: str, key: str
) -> None:
    world = make_world(1, 1, 1)
    world.refusals["node02"] = text
    world.plant()
    found = document(world, capsys)
    assert found["exit"] == 3
    (missing,) = found["missing"]
    assert missing["node"] == "node02" and says(missing["says"], key, line=text)


@pytest.mark.usefixtures("direct")
def test_more_than_64_devices_are_sampled_and_the_full_mesh_wants_a_yes(
    make_world: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npuenv.cluster.mesh.MOST_FOR_FULL", 3)
    world = make_world(2, 2)
    assert document(world, capsys)["mode"] == "sampled"
    before = len(world.made())
    assert before == 6
    assert mesh(world, "--full") == 2
    err = capsys.readouterr().err
    assert says(err, "mesh.estimate", pings=12, devices=4) and says(err, "mesh.large", most=3)
    assert 0 < len(world.made()) - before <= 8
    assert document(world, capsys, "--full", "--yes")["summary"]["ok"] == 12


def start(world: World, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "npuenv", "cluster", "mesh", "--hosts", str(world.hosts), "--lang", "en", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, stdout=pipe, stderr=pipe, text=True, env={**os.environ}, preexec_fn=as_from_a_terminal
    )


def processes_of(world: World) -> list[int]:
    """The processes that were started for this cluster and are still there."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"WORLD={world.folder}\0".encode() in file.read() and int(name) != os.getpid():
                    found.append(int(name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


@pytest.mark.slow
def test_ctrl_c_leaves_a_state_from_which_no_ping_is_made_twice(
    make_world: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(2, 2, 1)
    world.kill_card("node02:1")
    world.hold_after(10)
    heard = []
    monkeypatch.setattr(PingBar, "__call__", lambda _, done: heard.append(done))

    def interrupt() -> None:
        if until(lambda: max(heard, default=0) >= 6 and len(world.made()) >= 10):
            os.kill(os.getpid(), signal.SIGINT)

    impatient = threading.Thread(target=interrupt)
    with interruptible():
        impatient.start()
        assert mesh(world) == 130  # the run cannot be over before: no ping gets through any more
        impatient.join()
    err = capsys.readouterr().err
    assert says(err, "mesh.go-on")
    command = re.search(r": npuenv (cluster mesh .*)", err)
    assert command, err
    again = command[1].split()
    assert again[-2] == "--resume"
    kept, _ = load_results(Path(again[-1]))
    done = {(kept.devices[s].ip, kept.devices[t].ip) for s, t in kept.pairs(PingOutcome.OK, PingOutcome.FAILED)}
    assert 6 <= len(done) < 20
    settle(world)
    world.let_go()
    (world.folder / "log").rename(world.folder / "log.first")
    code = main([*again, "--lang", "en", "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert says(err, "mesh.estimate-left", left=20 - len(done), pings=20)
    assert code == 1
    assert [each["about"]["devices"] for each in found["culprits"]] == [[3]]
    assert (found["summary"]["planned"], found["summary"]["unknown"]) == (20, 0)
    later = Counter((ping.source, ping.target) for ping in world.made())
    assert not done & set(later)
    assert len(later) == sum(later.values()) == 20 - len(done)
    require_in_order(world)


def settle(world: World) -> None:
    """Waits until nothing works for this cluster any more; what was broken off left its mark."""
    assert until(lambda: not processes_of(world)), processes_of(world)
    for mark in world.folder.glob("running.*"):
        mark.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process_on_the_nodes(make_world: Any, number: signal.Signals) -> None:
    world = make_world(1, 1, 1)
    world.seconds["ok"] = 300.0
    world.plant()
    running = start(world)
    assert until(lambda: bool(list(world.folder.glob("running.*"))))
    running.send_signal(number)
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == (-9 if number is signal.SIGKILL else 130)
    settle(world)


@pytest.mark.usefixtures("direct")
def test_a_ping_without_an_answer_can_be_made_again_and_the_command_for_it_gives_the_same_report(
    make_world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(2, 2)
    world.plant("silent", [("node01:1", "node02:0")])
    page = world.folder / "mesh page.html"
    assert mesh(world, "-o", str(page)) == 3
    err = capsys.readouterr().err
    assert says(err, "mesh.retry")
    again = shlex.split(err.split(": npuenv ")[1].splitlines()[0])
    assert again[-2:] == ["-o", str(page)]
    world.plant("ok", [("node01:1", "node02:0")])
    page.unlink()
    (world.folder / "log").unlink()
    assert main([*again, "--lang", "en"]) == 0
    assert [(ping.source, ping.target) for ping in world.made()] == [("10.0.0.2", "10.1.0.1")]
    assert sentence("mesh.verdict-0") in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("direct")
def test_a_run_goes_on_when_a_card_has_died_meanwhile(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(2, 2)
    devices = tuple(
        MeshDevice(name.split(":")[0], int(name[-1]), ip, "255.0.0.0", board=int(name[-1]))
        for name, ip in world.addresses.items()
    )
    state = world.folder / "state.json"
    results = Results.empty(devices)
    for pair in ((0, 1), (1, 0), (3, 0), (3, 1), (3, 2)):
        results.note(pair, PingOutcome.OK)
    save_results(state, results, "full")
    world.kill_card("node02:1")
    world.addresses.pop("node02:1")
    world.plant()
    found = document(world, capsys, "--resume", str(state))
    assert found["exit"] == 1
    assert (found["summary"]["planned"], found["summary"]["failed"]) == (12, 3)
    assert [(each["kind"], each["about"]["devices"]) for each in found["culprits"]] == [("receives", [3])]
    assert [(each["node"], each["card"], each["says"]) for each in found["missing"]] == [
        ("node02", 1, sentence("mesh.why-no-address"))
    ]


@pytest.mark.usefixtures("direct")
def test_the_state_of_other_devices_is_refused(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(1, 1)
    state = world.folder / "state.json"
    devices = (MeshDevice("node01", 0, "10.0.0.1", "255.0.0.0"), MeshDevice("node02", 0, "10.9.0.9", "255.0.0.0"))
    save_results(state, Results.empty(devices), "full")
    world.plant()
    assert mesh(world, "--resume", str(state)) == 2
    kept = {"name": "node02 card 0", "kept": "10.9.0.9", "now": "10.1.0.1"}
    assert says(capsys.readouterr().err, "mesh.other-devices", **kept)
    assert world.made() == []
    assert mesh(world, "--resume", str(world.folder / "nothing")) == 2
    state.write_text('{"schema": "other"}', encoding="utf-8")
    assert mesh(world, "--resume", str(state)) == 2
    assert says(capsys.readouterr().err, "mesh.bad-state", path=state)


@pytest.mark.usefixtures("direct")
def test_the_page_is_whole_in_itself_and_shows_every_failing_ping(
    make_world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(2, 2)
    world.kill_card("node02:0")
    page = world.folder / "mesh.html"
    assert mesh(world, "-o", str(page)) == 1
    text = page.read_text(encoding="utf-8")
    assert sentence("mesh.kind-card", one="node02 card 0 (10.1.0.1)") in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "<script" not in text
    # Runs of failing neighbours are one rectangle: two of its row on one side, one on the other, three above and below.
    assert text.count('class="fail" fill="var(--tone)"><title>') == 5
    assert str(page) in capsys.readouterr().err


@pytest.mark.usefixtures("direct")
def test_the_report_speaks_chinese(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(1, 1, 1)
    world.kill_card("node02:0")
    assert main(["cluster", "mesh", "--hosts", str(world.hosts), "--lang", "zh"]) == 1
    out = capsys.readouterr().out
    card = sentence("mesh.card-at", "zh", node="node02", card=0, ip="10.1.0.1")
    assert says(out, "mesh.kind-card", "zh", one=card) and sentence("mesh.mode-full", "zh") in out


def test_full_and_sampled_exclude_each_other(make_world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(1, 1)
    assert mesh(world, "--full", "--sampled") == 2
    assert sentence("mesh.two-modes") in capsys.readouterr().err


def test_the_command_that_goes_on_repeats_how_pings_are_made() -> None:
    usual, state = MeshOptions("hosts"), Path("/s")
    assert resume_command(usual, "full", state) == "npuenv cluster mesh --hosts hosts --full --resume /s"
    other = resume_command(replace(usual, limit_s=2.5, parallel=4), "sampled", state)
    assert other.endswith("--sampled --resume /s --limit 2.5 --parallel 4")
    for form, out, words in (
        ("text", None, ""),
        ("html", "mesh.html", " -o mesh.html"),
        ("json", None, " --format json"),
        ("json", "-", " --format json -o -"),
        ("text", "a.json", " --format text -o a.json"),
    ):
        same = replace(usual, report=report_words(form, out))
        assert resume_command(same, "full", state).endswith(f"--resume /s{words}")


@pytest.mark.usefixtures("direct")
def test_an_inventory_that_was_piped_in_is_asked_for_again(
    make_world: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(1, 1)
    world.plant("silent", [("node01:0", "node02:0")])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(world.hosts.read_bytes())))
    assert main(["cluster", "mesh", "--hosts", "-", "--lang", "en"]) == 3
    command = part("npuenv cluster mesh --hosts - --full --resume")
    assert says(capsys.readouterr().err, "mesh.retry-input", command=command)
