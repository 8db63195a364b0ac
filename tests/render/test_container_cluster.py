"""A container on several nodes: what starts Ray, what waits for it, which nodes are taken, and what the heads say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.matrix import load_matrix
from npuenv.render.container import parts
from npuenv.render.container.description import Container, ContainerOptions, describe
from npuenv.render.container.formats import render_container
from tests.render import container_reading as reading
from tests.support.sentences import sentence

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = load_matrix()


def made(hardware: str = "a2", **wish: Any) -> Container:
    return describe(None, ContainerOptions(image="verl:a2", **wish), MATRIX, hardware=hardware)


@pytest.fixture
def host(tmp_path: Path) -> Any:
    return reading.Host(tmp_path)


def test_slurm_starts_workers_on_the_other_nodes_and_the_head_decides(host: Any) -> None:
    container = made(nodes=3)
    host.fill(container)
    code, _, calls = host.run(render_container(container)["slurm.sh"], "python3", "train.py")
    steps = {}
    for call in calls:
        if call.program == "srun" and "--container-image" in str(call.words):
            found, rest = reading.options(call.words, {"--no-container-mount-home"})
            steps[dict(found)["--relative"]] = (dict(found)["--nodes"], rest)
    assert code == 0
    assert steps["1"][0] == "2" and steps["1"][1][5:7] == ["follow", "node1:6379"]
    assert steps["1"][1][7:] == [sentence("container.no-head"), sentence("container.no-interface")]
    assert steps["0"][0] == "1" and steps["0"][1][5:9] == ["lead", "node1", "6379", "3"]
    assert steps["0"][1][9].startswith("Not all 3 nodes joined") and steps["0"][1][11:] == ["python3", "train.py"]
    assert 'ray start --address="$1"' in steps["1"][1][4] and "ray start --head" in steps["0"][1][4]
    directives = [line for line in render_container(container)["slurm.sh"].splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "#SBATCH --job-name=npuenv-a2",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --gres=npu:8",
        "#SBATCH --mem=0",
    ]


FOUND = 'cat >/dev/null; echo "enp194s0f0 10.0.0.7"'


def program(
    text: str, *words: str, ray: str, folder: Path, python: str = FOUND, **environ: str
) -> tuple[int, list[str]]:
    """Exit code of a program of a Ray cluster's side, and what it called but for python3.

    `ray` and `python` are the bodies of stand-ins for those; the clock goes on by five seconds with each sleep.
    """
    clock = f'echo $((5 * $(grep -c "^sleep" {folder}/calls)))'
    (folder / "calls").write_text("")
    for name, body in (("python3", python), ("date", clock)):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    for name, body in (("ray", ray), ("sleep", "")):
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{folder}/calls\n{body}\n')
        (folder / name).chmod(0o755)
    base = {"PATH": f"{folder}:{os.environ['PATH']}", "NPUENV_WAIT_S": "20"}
    done = subprocess.run(
        ["sh", "-c", text, "it", *words], env=base | environ, timeout=240, capture_output=True, check=False
    )
    (folder / "said").write_bytes(done.stderr)
    return done.returncode, (folder / "calls").read_text().splitlines()


HEAD, START = ("node1", "6379", "3", "Absent.", "No interface."), "ray start --head --port=6379"


WORKER = ("node1:6379", "No head.", "No interface.")


def status(folder: Path, *, full_at: int) -> str:
    """The body of a stand-in for ray: two nodes are there at first, three once it was called `full_at` times."""
    active = "\n".join(["Active:", " 1 node_a", " 1 node_b", "Pending:", " 1 node_p"])
    full = "\n".join(["Active:", " 1 node_a", "Idle:", " 2 node_b", "Pending:", " (no pending nodes)"])
    (folder / "some").write_text(active + "\nRecent failures:\n node_x: gone\n")
    (folder / "all").write_text(full + "\n")
    enough = f'test "$(grep -c . <{folder}/calls)" -ge {full_at}'
    return f'if [ "$1" = status ]; then if {enough}; then cat {folder}/all; else cat {folder}/some; fi; fi'


def test_the_head_stops_ray_after_its_command_and_hands_its_exit_code_on(tmp_path: Path) -> None:
    ray = status(tmp_path, full_at=0)
    code, calls = program(parts.LEAD, *HEAD, "sh", "-c", "exit 9", ray=ray, folder=tmp_path)
    assert (code, calls) == (9, [START, "ray status", "ray stop"])


def test_the_head_runs_its_command_only_once_all_nodes_have_joined(tmp_path: Path) -> None:
    ray = status(tmp_path, full_at=6)
    note = f"echo ran >>{tmp_path}/calls"
    code, calls = program(parts.LEAD, *HEAD, "sh", "-c", note, ray=ray, folder=tmp_path)
    wait = ["ray status", "sleep 5"]
    assert (code, calls) == (0, [START, *wait, *wait, "ray status", "ran", "ray stop"])


def test_the_head_gives_up_where_a_node_stays_away_and_says_so(tmp_path: Path) -> None:
    ray = status(tmp_path, full_at=99)
    code, calls = program(parts.LEAD, *HEAD, "touch", f"{tmp_path}/ran", ray=ray, folder=tmp_path)
    assert (code, calls) == (1, [START, *["ray status", "sleep 5"] * 4, "ray status", "ray stop"])
    assert (tmp_path / "said").read_text() == "Absent.\n"
    assert not (tmp_path / "ran").exists()


def test_the_command_learns_its_place_among_the_nodes_and_rays_own_processes_do_not(tmp_path: Path) -> None:
    place = 'echo "${RANK-no} ${WORLD_SIZE-no} ${MASTER_ADDR-no}"'
    ray = f'if [ "$1" = start ]; then {place} >>{tmp_path}/calls; fi\n{status(tmp_path, full_at=0)}'
    code, calls = program(parts.LEAD, *HEAD, "sh", "-c", f"{place} >>{tmp_path}/calls", ray=ray, folder=tmp_path)
    assert (code, calls) == (0, [START, "no no no", "ray status", "0 3 node1", "ray stop"])
    for name in ("kubernetes.yaml", "slurm.sh"):
        several, one = (render_container(made(nodes=nodes))[name] for nodes in (3, 1))
        assert "with RANK=0, WORLD_SIZE=3 and MASTER_ADDR set" in several
        assert "MASTER_ADDR" not in one


@pytest.mark.parametrize("name", ["docker-run.sh", "compose.yaml", "apptainer.sh"])
def test_a_form_for_one_node_says_what_starts_ray_on_several(name: str) -> None:
    several, one = (render_container(made(nodes=nodes))[name] for nodes in (2, 1))
    assert sentence("container.note-each-node") in " ".join(several.replace("#", " ").split())
    assert "Ray:" not in one


@pytest.mark.parametrize(
    ("hardware", "cards", "expected"),
    [
        ("a2", "0-7", "module-910b-8"),
        ("a2", "0,8", "module-910b-16"),
        ("a3", "0-15", "module-a3-16"),
        ("950", "0-7", None),
        ("310p", "0", None),
    ],
)
def test_volcano_takes_nodes_of_the_right_kind(hardware: str, cards: str, expected: str | None) -> None:
    text = render_container(made(hardware, cards=cards, nodes=2), ["k8s"])["kubernetes.yaml"]
    wanted = {"accelerator-type": expected} if expected else None
    assert [pod.get("nodeSelector") for pod in reading.pods(text)] == [wanted] * 2
    assert (f"label accelerator-type={expected};" in text) is (expected is not None)
    alone = render_container(made(hardware, cards=cards), ["k8s"])["kubernetes.yaml"]
    assert "accelerator-type" not in alone


def test_where_ray_does_not_start_the_command_is_not_run(tmp_path: Path) -> None:
    code, calls = program(parts.LEAD, *HEAD, "touch", f"{tmp_path}/ran", ray="exit 4", folder=tmp_path)
    assert (code, calls) == (4, [START])
    assert not (tmp_path / "ran").exists()


def test_a_worker_waits_for_the_head_and_then_stays(tmp_path: Path) -> None:
    late = f'test "$(wc -l <{tmp_path}/calls)" -gt 4'
    code, calls = program(parts.FOLLOW, *WORKER, ray=late, folder=tmp_path)
    join = "ray start --address=node1:6379"
    assert (code, calls) == (0, [join, "sleep 5", join, "sleep 5", join, "sleep infinity"])


@pytest.mark.parametrize(("seconds", "waits"), [("20", 4), ("60", 12)])
def test_a_worker_without_a_head_gives_up_in_the_time_that_is_set(tmp_path: Path, seconds: str, waits: int) -> None:
    code, calls = program(parts.FOLLOW, *WORKER, ray="exit 1", folder=tmp_path, NPUENV_WAIT_S=seconds)
    assert (code, calls.count("sleep 5"), calls.count("sleep infinity")) == (1, waits, 0)
    assert (tmp_path / "said").read_text() == "No head.\n"


def test_ray_starts_with_the_interface_that_reaches_the_head(tmp_path: Path) -> None:
    """Ray's processes inherit what it starts with: set later, the variables reach no worker."""
    names = ("HCCL_SOCKET_IFNAME", "HCCL_IF_IP", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    show = " ".join(f'"{name}=${{{name}-none}}"' for name in names)
    ray = f'test "$1" = start && printf "%s\\n" {show} >{tmp_path}/environ\n{status(tmp_path, full_at=0)}'
    expected = ["HCCL_SOCKET_IFNAME==enp194s0f0", "HCCL_IF_IP=10.0.0.7"]
    expected += ["GLOO_SOCKET_IFNAME=enp194s0f0", "TP_SOCKET_IFNAME=enp194s0f0"]
    for text, words in ((parts.LEAD, (*HEAD, "true")), (parts.FOLLOW, WORKER)):
        assert program(text, *words, ray=ray, folder=tmp_path)[0] == 0
        assert (tmp_path / "environ").read_text().splitlines() == expected
        program(text, *words, ray=ray, folder=tmp_path, GLOO_SOCKET_IFNAME="bond0")
        assert (tmp_path / "environ").read_text().splitlines()[2] == "GLOO_SOCKET_IFNAME=bond0"


def test_where_no_interface_is_found_the_job_goes_on_and_says_so(tmp_path: Path) -> None:
    ray = (
        f'test "$1" != start || echo "${{HCCL_SOCKET_IFNAME-none}}" >{tmp_path}/environ\n{status(tmp_path, full_at=0)}'
    )
    code, calls = program(parts.LEAD, *HEAD, "true", ray=ray, folder=tmp_path, python="exit 1")
    assert (code, calls[0], (tmp_path / "said").read_text()) == (0, START, "No interface.\n")
    assert (tmp_path / "environ").read_text() == "none\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the interfaces of Linux are asked")
def test_the_interface_is_looked_up_by_the_address_that_reaches_the_head(tmp_path: Path) -> None:
    """The program inside, run for real: with an address of this machine's own, and with a name that leads nowhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route to anywhere")
        own = way.getsockname()[0]
    real = f'exec {sys.executable} "$@"'
    ray = f'echo "${{HCCL_SOCKET_IFNAME-none}} ${{HCCL_IF_IP-none}}" >{tmp_path}/environ'
    program(parts.FOLLOW, f"{own}:6379", *WORKER[1:], ray=ray, folder=tmp_path, python=real)
    by_address = (tmp_path / "environ").read_text().split()
    program(parts.FOLLOW, "127.0.0.1:6379", *WORKER[1:], ray=ray, folder=tmp_path, python=real)
    by_loopback = (tmp_path / "environ").read_text().split()
    assert by_address == by_loopback
    assert by_address[0][1:] in [name for _, name in socket.if_nameindex()] and by_address[1] == own
    gone = {"python": real, "NPUENV_WAIT_S": "0"}
    program(parts.FOLLOW, "nowhere.invalid:6379", *WORKER[1:], ray=ray, folder=tmp_path, **gone)
    assert (tmp_path / "environ").read_text().split() == ["none", "none"]


def test_volcano_waits_for_all_nodes_and_ends_with_the_heads_command() -> None:
    container = made("a3", nodes=4, name="grpo", command="python3 train.py")
    job = reading.load_yaml(render_container(container, ["k8s"])["kubernetes.yaml"])
    spec = job["spec"]
    assert (job["kind"], job["apiVersion"], spec["schedulerName"]) == ("Job", "batch.volcano.sh/v1alpha1", "volcano")
    assert (spec["minAvailable"], [task["replicas"] for task in spec["tasks"]]) == (4, [1, 3])
    head, worker = spec["tasks"]
    assert head["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]
    args = [task["template"]["spec"]["containers"][0]["args"] for task in (head, worker)]
    assert args[0][3:7] == ["lead", "grpo-head-0.grpo", "6379", "4"]
    assert args[0][7].startswith("Not all 4 nodes joined") and args[0][9:] == ["python3", "train.py"]
    assert args[1][3:5] == ["follow", "grpo-head-0.grpo:6379"]
    apart = worker["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart[0]["labelSelector"]["matchLabels"].items() <= head["template"]["metadata"]["labels"].items()
