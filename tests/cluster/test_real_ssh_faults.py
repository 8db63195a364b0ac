"""`npuenv doctor --hosts` over real ssh where every node has the cards of a recorded machine, with faults and without.

The servers, networks, processes and files of the nodes are real; npu-smi and hccn_tool say what was recorded.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.documents import load_toml
from tests.cluster.replayed import prepare, replay, tools_folder
from tests.cluster.uniform import description, name_of, switched
from tests.cluster.voting import same, spoken, words
from tests.support.machines.edits import edited
from tests.support.namespaces import Machines, machines, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

pytestmark = pytest.mark.slow
USUAL, COUNT = "a2-b3-host-roll", 4
NAMES = [name_of(number) for number in range(1, COUNT + 1)]
BAD = ("warn", "fail")  # what such a host cannot tell (who keeps its clock) is no alarm
OF_CARDS = (
    "cards",
    "driver",
    "firmware",
    "tls",
    "links",
    "card-mtu",
    "card-addresses",
    "netmasks",
    "gateways",
    "health",
)
PLANTED = {row["id"]: row for row in load_toml(Path(__file__).parent / "planted" / "faults.toml")["fault"]}
# All at once, on different nodes or in different things, so that none hides another one.
TOGETHER = ("tls-two-cards", "driver-other-year", "card-address-clash", "card-mtu", "link-down", "netmask", "gateway")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    reason = why_not(sshd=True)
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("replayed")
    path = (
        f"{tools_folder(folder)}:{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/bin"
    )
    with machines(folder, COUNT, devices=8, sshd=True, names=NAMES, env={"PATH": path}) as made:
        prepare(made)
        yield made


def plant(hosts: Machines, faults: Sequence[Mapping[str, Any]] = (), *, tls: str = "off") -> None:
    """Gives every host its cards, with the faults among what they say."""
    edits: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for fault in faults:
        for number, own in fault["on"].items():
            edits[int(number)] += own
    for number, host in enumerate(hosts, start=1):
        replay(hosts, host, edited(edited(description(USUAL, number), switched(tls)), edits[number]))


def agreement(hosts: Machines, inventory: str = "node[01-04]\n") -> dict[str, dict[str, Any]]:
    """What the doctor says about the nodes together, by the ids of its findings."""
    file = hosts.folder / "inventory"
    file.write_text(inventory)
    argv = [sys.executable, "-m", "npuenv", "doctor", "--hosts", str(file), "--ssh-config", str(hosts.ssh_config)]
    # Two at once: a node has a minute for all questions to hccn_tool, and these nodes share the cores of one machine.
    argv += ["--parallel", "2", "--level", "2", "--lang", "en", "--json"]
    ran = hosts.operator.run(*argv, check=False, timeout_s=900)
    assert ran.stdout, ran.stderr
    document = json.loads(ran.stdout)
    assert {name: node["trouble"] for name, node in document["nodes"].items()} == dict.fromkeys(NAMES)
    return {each["check"]: each for each in document["agreement"]["findings"]}


def require_all_cards_asked(hosts: Machines) -> None:
    """Every host was really asked about each of its cards."""
    for host in hosts:
        asked = (hosts.folder / host.name / "asked").read_text().splitlines()
        assert {f"hccn_tool -i {card} -{item} -g" for card in range(8) for item in ("link", "tls", "ip")} <= {*asked}


@pytest.mark.parametrize("tls", ["off", "on"])
@pytest.mark.long
def test_a_uniform_cluster_gives_no_alarm(hosts: Machines, tls: str) -> None:
    plant(hosts, tls=tls)
    found = agreement(hosts)
    assert [(name, each["says"]) for name, each in found.items() if each["status"] in BAD] == []
    assert found["agree.tls"]["says"] == same(words(f"word-tls-{tls}"), 32)
    assert {name for name in (*OF_CARDS, "clock") if found[f"agree.{name}"]["status"] != "ok"} == set()
    require_all_cards_asked(hosts)


@pytest.mark.long
def test_planted_faults_are_each_named_and_nothing_else_is(hosts: Machines) -> None:
    faults = [PLANTED[name] for name in TOGETHER]
    plant(hosts, faults)
    found = agreement(hosts, f"node[01-03]\nnode04 python={hosts.folder / 'python-ahead'}\n")
    for fault in faults:
        told = found[fault["finds"]]
        missing = [word for word in fault["names"] if spoken(word) not in told["says"]]
        assert (fault["id"], told["status"], missing) == (fault["id"], fault["status"], []), told["says"]
        nodes = {name_of(int(number)) for number in fault["on"]}
        assert nodes & {line["command"].partition(":")[0] for line in told["evidence"]}, told["evidence"]
        assert told["fix"] is not None
    assert found["agree.clock"]["status"] == "fail" and "node04" in found["agree.clock"]["says"]
    expected = {fault["finds"] for fault in faults} | {"agree.clock"}
    follows = {name for fault in faults for name in fault.get("follows", [])}
    assert {name for name, each in found.items() if each["status"] in BAD} - follows == expected
    require_all_cards_asked(hosts)
