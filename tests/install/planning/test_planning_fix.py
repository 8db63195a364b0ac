"""FixPlan to a plan: what is run, what is written for the user's shell, what is only shown, in which order."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.core.finding import Finding, Fix, Status
from npuenv.core.messages import Message
from npuenv.core.plan import Condition, Run, WriteFile
from npuenv.core.shell import shell_line
from npuenv.install.fix_plan import SESSION_STEP, FixContext, plan_fixes, session_text, undo_script

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.install.fix_plan import Argv, FixPlan

PLACE = FixContext("/data/session.sh")
PIP = ("/env/bin/python", "-m", "pip")
NEVER = (
    *("kill", "killall", "killall5", "pkill", "skill", "fuser", "reboot", "shutdown", "poweroff", "halt", "init"),
    *("telinit", "iptables", "ip6tables", "nft", "ufw", "firewall-cmd", "setenforce", "mkfs", "dd", "rm", "rmmod"),
    *("modprobe", "insmod", "sh", "bash", "dash", "zsh"),
)
AREAS = ("machine", "container", "devices", "driver", "cards", "cann", "nnal", "network", "python", "ray", "other")


def ill(check: str, *commands: Argv, is_automatic: bool = True, **more: object) -> Finding:
    says = Message("doctor.source", {"source": check})
    fix = Fix(says, commands, is_automatic=is_automatic, **more)  # type: ignore[arg-type]
    return Finding(check, Status.FAIL, says, (), "", fix)


def commands(cures: FixPlan) -> dict[str, list[Argv]]:
    return {step.id: [act.argv for act in step.do if isinstance(act, Run)] for step in cures.plan.steps}


def why(cures: FixPlan) -> dict[str, str]:
    return {each.check: each.why.key for each in cures.manual}


def test_automatic_cures_become_steps_with_an_undo() -> None:
    one = ill(
        "python.triton",
        ("/home/user1/bin/python", "-m", "pip", "uninstall", "-y", "triton"),
        undo=(("/home/user1/bin/python", "-m", "pip", "install", "triton==3.2"),),
    )
    cures = plan_fixes(
        [one, replace(one, check="cann.found", fix=None)], PLACE, lambda text: text.replace("user1", "ann")
    )
    (step,) = cures.plan.steps
    assert (step.id, step.why.args["source"]) == ("python-triton", "python.triton")
    assert step.do == (Run(("/home/ann/bin/python", "-m", "pip", "uninstall", "-y", "triton")),)
    assert cures.checks == {"python-triton": ("python.triton",)}
    assert cures.undo == {"python-triton": (("/home/ann/bin/python", "-m", "pip", "install", "triton==3.2"),)}
    assert cures.manual == () and "python.triton" in cures.checks["python-triton"]


def test_steps_go_from_the_ground_up_and_triton_ascend_goes_in_last() -> None:
    cures = plan_fixes(
        [
            ill("python.triton", (*PIP, "install", "triton-ascend==3.2.0")),
            ill("ray.tmp", ("ray-cure",)),
            ill("python.numpy", (*PIP, "install", "numpy<2")),
            ill("machine.disk", ("disk-cure",)),
            ill("cann.found", ("cann-cure",)),
        ],
        PLACE,
    )
    ids = [step.id for step in cures.plan.steps]
    assert ids == ["machine-disk", "cann-found", "python-numpy", "ray-tmp", "python-triton"]
    assert [step.after for step in cures.plan.steps] == [(), *((before,) for before in ids[:-1])]


def test_the_steps_of_all_layers_stand_in_the_order_of_the_layers() -> None:
    cures = plan_fixes([ill(f"{area}.x", (f"{area}-cure",)) for area in reversed(AREAS)], PLACE)
    assert [step.id for step in cures.plan.steps] == [f"{area}-x" for area in AREAS]


def test_one_command_for_two_checks_is_run_once() -> None:
    both = (*PIP, "uninstall", "-y", "triton"), (*PIP, "install", "--force-reinstall", "triton-ascend")
    cures = plan_fixes([ill("python.triton", *both), ill("python.one-owner", both[1])], PLACE)
    rehearsal = (*PIP, "install", "--dry-run", "--force-reinstall", "triton-ascend")
    assert commands(cures) == {"python-triton": [rehearsal, *both]}
    assert cures.checks == {"python-triton": ("python.triton", "python.one-owner")}
    assert "python.one-owner" in cures.checks["python-triton"]


def test_a_package_that_is_put_in_anew_is_not_put_in_twice() -> None:
    cure = (*PIP, "uninstall", "-y", "triton", "triton-ascend"), (*PIP, "install", "triton-ascend==3.2.0")
    again = (*PIP, "install", "--force-reinstall", "--no-deps", "triton-ascend==3.2.0")
    cures = plan_fixes([ill("python.triton", *cure), ill("python.one-owner", again)], PLACE)
    assert cures.checks == {"python-triton": ("python.triton", "python.one-owner")} and cures.manual == ()
    other = (*PIP, "install", "--force-reinstall", "--no-deps", "triton-ascend==3.2.0", "numpy==1.26.4")
    cures = plan_fixes([ill("python.triton", *cure), ill("python.one-owner", other)], PLACE)
    assert [step.id for step in cures.plan.steps] == ["python-triton", "python-one-owner"]
    kept = (*PIP, "install", "numpy==1.26.4"), (*PIP, "install", "--force-reinstall", "numpy==1.26.4")
    cures = plan_fixes([ill("python.numpy", kept[0]), ill("python.one-owner", kept[1])], PLACE)
    assert [step.id for step in cures.plan.steps] == ["python-numpy", "python-one-owner"]


@pytest.mark.parametrize(
    "command",
    [
        ("pkill", "-f", "python"),
        ("/usr/bin/killall", "ray"),
        ("kill", "-9", "1234"),
        ("sudo", "reboot"),
        ("npu-smi", "set", "-t", "reset", "-i", "0"),
        ("hccn_tool", "-i", "0", "-tls", "-s", "enable", "0"),
        ("iptables", "-F"),
        ("systemctl", "stop", "firewalld"),
        ("bash", "-c", "anything"),
        ("rm", "-rf", "/x"),
        *((word, "x") for word in NEVER),
    ],
)
def test_some_commands_are_never_run_whatever_a_check_says(command: Argv) -> None:
    cures = plan_fixes([ill("cards.free", command)], FixContext("/s", is_root=True))
    assert cures.plan.steps == () and why(cures) == {"cards.free": "fix.dangerous"}
    assert cures.manual[0].commands == (command,)


def test_what_is_not_run_says_why() -> None:
    cures = plan_fixes(
        [
            ill("network.tls-agrees", ("ok",), is_dangerous=True),
            ill("cards.healthy", ("npu-smi", "info"), is_automatic=False),
            ill("driver.installed"),
            ill("machine.disk", ("mount", "<your disk>")),
            ill("network.proxy", ("pip", "install", "--proxy", "http://user:***@h", "x")),
            ill("machine.locked-memory", ("ldconfig",), needs_root=True),
            ill("machine.arch", ("sudo", "ldconfig")),
            ill("cann.sourced", ("source", "CANN/set_env.sh"), is_automatic=False),
        ],
        PLACE,
    )
    assert cures.plan.steps == ()
    assert why(cures) == {
        "network.tls-agrees": "fix.dangerous",
        "cards.healthy": "fix.by-hand",
        "driver.installed": "fix.by-hand",
        "machine.disk": "fix.placeholder",
        "network.proxy": "fix.placeholder",
        "machine.locked-memory": "fix.needs-root",
        "machine.arch": "fix.needs-root",
        "cann.sourced": "fix.by-hand",
    }


def test_root_may_do_what_needs_root() -> None:
    cures = plan_fixes([ill("machine.locked-memory", ("ldconfig",), needs_root=True)], FixContext("/s", is_root=True))
    assert [(step.id, step.needs_root) for step in cures.plan.steps] == [("machine-locked-memory", True)]


def test_the_worse_problem_keeps_its_cure_where_two_contradict() -> None:
    cures = plan_fixes(
        [
            ill("python.numpy", (*PIP, "install", "numpy<2")),
            ill("python.limits", (*PIP, "install", "NumPy>=2", "pyarrow")),
            ill("python.torchvision", ("uv", "pip", "uninstall", "numpy")),
            ill("session.hccl", ("export", "HCCL_IF_BASE_PORT=60000"), is_automatic=False),
            ill("session.interface", ("unset", "HCCL_IF_BASE_PORT", "OTHER"), is_automatic=False),
        ],
        PLACE,
    )
    assert list(commands(cures)) == ["python-numpy", SESSION_STEP]
    assert {each.check: each.why.args for each in cures.manual} == {
        "python.limits": {"what": "numpy", "other": "python-numpy"},
        "python.torchvision": {"what": "numpy", "other": "python-numpy"},
        "session.interface": {"what": "HCCL_IF_BASE_PORT", "other": "session.hccl"},
    }


def test_what_is_for_the_users_shell_goes_into_one_file() -> None:
    cures = plan_fixes(
        [
            ill("cann.sourced", ("source", "/opt/my cann/set_env.sh"), is_automatic=False),
            ill("session.allocator", ("unset", "PYTORCH_NPU_ALLOC_CONF"), is_automatic=False),
            ill("driver.npu-smi", ("export", "LD_LIBRARY_PATH=/d/lib:$LD_LIBRARY_PATH"), is_automatic=False),
        ],
        PLACE,
    )
    (step,) = cures.plan.steps
    text = (
        "# npuenv doctor --fix; in your shell:  . /data/session.sh\n"
        ". '/opt/my cann/set_env.sh'  # cann.sourced\n"
        "unset PYTORCH_NPU_ALLOC_CONF  # session.allocator\n"
        'export LD_LIBRARY_PATH=/d/lib:"$LD_LIBRARY_PATH"  # driver.npu-smi\n'
    )
    assert step.do == (WriteFile("/data/session.sh", text),)
    assert step.done_when == (Condition("file.text", ("/data/session.sh",), text),)
    assert cures.checks[SESSION_STEP] == ("cann.sourced", "session.allocator", "driver.npu-smi")
    assert cures.undo[SESSION_STEP] == (("rm", "-f", "/data/session.sh"),)


def test_a_second_run_keeps_what_the_first_wrote_and_replaces_what_is_set_anew() -> None:
    first = plan_fixes([ill("session.hccl", ("export", "A=1"), ("export", "B=2"), is_automatic=False)], PLACE)
    text = next(act.text for act in first.plan.steps[0].do if isinstance(act, WriteFile))
    again = plan_fixes(
        [ill("session.hccl", ("export", "A=1"), ("export", "B=2"), is_automatic=False)],
        FixContext("/data/session.sh", text),
    )
    assert again.plan.steps[0].done_when[0].value == text
    later = plan_fixes(
        [ill("session.interface", ("unset", "A"), is_automatic=False)], FixContext("/data/session.sh", text, "/b")
    )
    written = later.plan.steps[0].done_when[0].value.splitlines()[1:]
    assert written == ["export B=2  # session.hccl", "unset A  # session.interface"]
    assert later.undo[SESSION_STEP] == (("cp", "/b", "/data/session.sh"),)


def test_a_shell_reads_the_file_as_it_is_meant(tmp_path: Path) -> None:
    evil = "a'b\"c $(touch owned) `touch owned` ; touch owned #  # x"
    lines = {"session.hccl": [("export", f"A={evil}"), ("export", "LD_LIBRARY_PATH=/new:$LD_LIBRARY_PATH")]}
    file = tmp_path / "session.sh"
    file.write_text(session_text("", lines, str(file)), encoding="utf-8")
    script = '. "$1"; . "$1"; printf "%s\\n%s" "$A" "$LD_LIBRARY_PATH"'
    ran = subprocess.run(
        ["sh", "-c", script, "sh", str(file)],
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/old"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"{evil}\n/new:/new:/old" and ran.stderr == ""
    assert not (tmp_path / "owned").exists()
    again = session_text(file.read_text(encoding="utf-8"), lines, str(file))
    assert again == file.read_text(encoding="utf-8")


def test_a_line_end_cannot_begin_a_second_command() -> None:
    assert "\n" not in shell_line(("export", "A=1\ntouch owned"))
    assert "\n" not in shell_line(("pip", "install", "a\nb"))


def test_the_undo_script_goes_backwards_and_says_what_cannot_be_taken_back(tmp_path: Path) -> None:
    cures = plan_fixes(
        [
            ill(
                "machine.disk", ("a",), undo=(("touch", str(tmp_path / "one")), ("touch", str(tmp_path / "two words")))
            ),
            ill("python.numpy", ("b",)),
            ill("ray.tmp", ("c",), undo=(("touch", str(tmp_path / "never")),)),
        ],
        PLACE,
    )
    text = undo_script(cures, ["machine-disk", "python-numpy"], head="head", never="cannot")
    assert text.index("# python-numpy\n# cannot") < text.index("# machine-disk\n")
    script = tmp_path / "undo.sh"
    script.write_text(text, encoding="utf-8")
    subprocess.run(["sh", str(script)], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two words", "undo.sh"]


def test_removing_remains_of_packages_is_left_to_the_user_without_talk_of_security() -> None:
    remains = ("rm", "-r", "--", "/env/lib/python3.11/site-packages/~umpy")
    cures = plan_fixes([ill("python.leftovers", remains)], PLACE)
    assert why(cures) == {"python.leftovers": "fix.removes"} and cures.plan.steps == ()
    mixed = (*remains, "/etc/passwd")
    assert why(plan_fixes([ill("python.leftovers", mixed)], PLACE)) == {"python.leftovers": "fix.dangerous"}
