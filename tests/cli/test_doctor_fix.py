"""`doctor --fix`: plans, asks, runs, looks again, and leaves an undo; on a small made-up machine and on this one."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

import npuenv.report
from npuenv.app import DoctorResult, FixOptions
from npuenv.app.fixes import fix_findings
from npuenv.checks import Finding, Fix, Status
from npuenv.cli import main
from npuenv.cli.common import Stop, Ui
from npuenv.cli.fix import ConsoleProgress, report
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.facts.collect import collect
from npuenv.host.local import LocalHost
from npuenv.lock.uv import write_wheel
from tests.support.own_signals import interruptible
from tests.support.sentences import part, says, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npuenv.host import Host

pytestmark = pytest.mark.usefixtures("home")
SAYS = Message("doctor.title")


@dataclass
class World:
    """A machine of a few checks: each is well when its condition holds for the host that is looked at."""

    cures: dict[str, Fix] = field(default_factory=dict)
    is_well: dict[str, Callable[[Host], bool]] = field(default_factory=dict)
    num_looks: int = 0

    def add(self, check: str, is_well: Callable[[Host], bool], *commands: tuple[str, ...], **more: object) -> None:
        self.is_well[check] = is_well
        self.cures[check] = Fix(SAYS, commands, **{"is_automatic": True, **more})  # type: ignore[arg-type]

    def look(self, host: Host) -> DoctorResult:
        self.num_looks += 1
        findings = tuple(
            Finding(check, Status.OK, SAYS, (), "", None)
            if is_well(host)
            else Finding(check, Status.FAIL, SAYS, (), "", self.cures[check])
            for check, is_well in self.is_well.items()
        )
        return DoctorResult(collect(LocalHost(), only=frozenset()), findings, None, host)

    def mend(
        self, *, is_json: bool = False, is_dry_run: bool = False, yes: bool = True, is_quiet: bool = False
    ) -> ExitCode:
        ui, host, options = Ui("en", is_json, is_quiet), LocalHost(), FixOptions(is_dry_run)
        result = fix_findings(self.look(host), self.look, options, ConsoleProgress(ui, yes=yes), host)
        report(ui, result)
        return result.exit_code


def data() -> Path:
    return Path(os.environ["XDG_DATA_HOME"]) / "npuenv"


def problems(document: object) -> list[str]:
    path = Path(npuenv.report.__file__).parent / "schemas" / "fix-1.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def test_what_is_mended_is_said_and_can_be_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "a mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)), undo=(("rm", str(mark)),))
    world.add("cards.healthy", lambda host: False, ("npu-smi", "info"), is_automatic=False)
    assert world.mend() is ExitCode.PROBLEMS
    out = capsys.readouterr().out
    assert says(out, "fix.mended", names="disk space") and says(out, "fix.left", names="card health")
    assert mark.exists() and world.num_looks == 2
    undo = data() / "fixes" / "1" / "undo.sh"
    assert says(out, "fix.undo", path=undo)
    subprocess.run(["sh", str(undo)], check=True)
    assert not mark.exists()


def test_a_second_run_has_nothing_to_do_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    assert world.mend() is ExitCode.FINE
    assert world.mend() is ExitCode.FINE
    assert capsys.readouterr().out.endswith(f"{sentence('fix.nothing')}\n")
    assert [path.name for path in (data() / "fixes").iterdir()] == ["1"]


def test_a_dry_run_shows_everything_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    world.add("network.tls-agrees", lambda host: False, ("hccn_tool", "-i", "0", "-tls", "-s"), is_dangerous=True)
    world.add("session.hccl", lambda host: "A_B" in host.environ(), ("export", "A_B=1 2"), is_automatic=False)
    assert world.mend(is_dry_run=True, yes=False) is ExitCode.PROBLEMS
    out = capsys.readouterr().out
    assert f"1. machine-disk: npuenv doctor\n     $ touch {mark}\n" in out
    assert f"     {sentence('fix.plan-for', checks='disk space')} · {sentence('fix.plan-once')}\n" in out
    assert "     $ export A_B='1 2'\n" in out
    assert says(out, "fix.shown-head")
    assert says(
        out, "fix.shown", names=sentence("check_network.title-network-tls-agrees"), why=sentence("fix.dangerous")
    )
    assert not mark.exists() and not data().exists() and world.num_looks == 1


def test_what_several_checks_want_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    for check in ("cards.healthy", "cards.free"):
        world.add(check, lambda host: False, ("npu-smi", "info"), is_automatic=False)
    world.mend(is_dry_run=True)
    out = capsys.readouterr().out
    names = f"{sentence('check_npu.title-cards-healthy')}, {sentence('check_npu.title-cards-free')}"
    shown = sentence("fix.shown", names=names, why=sentence("fix.by-hand"), says="npuenv doctor")
    assert f"  - {shown}\n     $ npu-smi info\n" in out
    assert out.count("npu-smi info") == 1


def test_the_documents_of_plan_and_outcome_hold_to_their_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    world.add("cards.healthy", lambda host: False, ("false",))
    world.add("session.hccl", lambda host: host.environ().get("A_B") == "1", ("export", "A_B=1"), is_automatic=False)
    world.mend(is_json=True, is_dry_run=True)
    plan = json.loads(capsys.readouterr().out)
    assert problems(plan) == [] and plan["dry_run"] is True and plan["undo"] is None
    assert {step["id"]: step["state"] for step in plan["steps"]} == dict.fromkeys(
        ("machine-disk", "cards-healthy", "session"), "planned"
    )
    assert world.mend(is_json=True) is ExitCode.PROBLEMS
    done = json.loads(capsys.readouterr().out)
    assert problems(done) == [] and done["exit"] == 1
    assert {step["id"]: step["state"] for step in done["steps"]} == {
        "machine-disk": "done",
        "cards-healthy": "failed",
        "session": "done",
    }
    assert (done["mended"], done["mended_in_shell"]) == (["machine.disk"], ["session.hccl"])
    assert done["left"] == ["cards.healthy"] and done["session"] == ["export A_B=1"]


def test_a_shell_that_reads_the_file_is_looked_at_too(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.add("session.hccl", lambda host: host.environ().get("A_B") == "1", ("export", "A_B=1"), is_automatic=False)
    world.add("session.proxy", lambda host: "LANG" not in host.environ(), ("unset", "LANG"), is_automatic=False)
    world.add("session.task-queue", lambda host: False, ("export", "USELESS=1"), is_automatic=False)
    assert world.mend() is ExitCode.PROBLEMS
    out = capsys.readouterr().out
    file = data() / "session.sh"
    assert says(out, "fix.mended-in-shell", names="HCCL settings, proxies")
    assert says(out, "fix.left", names=sentence("check_session.title-session-task-queue"))
    assert f"     $ . {file}\n" in out
    assert world.mend() is ExitCode.PROBLEMS
    out = capsys.readouterr().out
    assert says(out, "fix.already") and f"$ . {file}" in out
    assert [path.name for path in (data() / "fixes").iterdir()] == ["1"]


def test_programs_of_a_sourced_shell_get_its_variables_and_no_others() -> None:
    from npuenv.host.local import sourced

    file = data() / "session.sh"
    file.parent.mkdir(parents=True)
    file.write_text("export A_B='x y'\nunset LANG\necho noise; echo noise >&2\n", encoding="utf-8")
    host = sourced(LocalHost(), str(file))
    assert host is not None
    ran = host.run((sys.executable, "-c", "import os; print(os.environ.get('A_B'), os.environ.get('LANG'))"))
    assert (ran.code, ran.out) == (0, "x y None\n") and ran.argv[0] == sys.executable
    assert host.run(("no-such-program",)).is_absent
    assert host.run(("uname", "-m")).out == LocalHost().run(("uname", "-m")).out
    without = sourced(LocalHost(), str(file.with_name("absent")))
    assert without is None or "A_B" not in without.environ()


def test_a_failed_step_keeps_the_others_going_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    world = World()
    cure = ("ls", "/no/such/place")
    world.add("machine.glibc", lambda host: mark.exists(), cure)
    world.add("ray.tmp", lambda host: mark.exists(), ("touch", str(mark)))
    world.is_well = {"machine.glibc": world.is_well["machine.glibc"], "cann.found": world.is_well["ray.tmp"]}
    world.cures["cann.found"] = world.cures["ray.tmp"]
    # The failed cure counts although another step made its check well.
    assert world.mend() is ExitCode.PROBLEMS
    out = capsys.readouterr().out
    assert says(out, "execute.step-failed", step="machine-glibc", why=part("/no/such/place"))
    assert mark.exists() and says(out, "fix.mended", names="C library, CANN")


def test_quiet_tells_only_what_is_not_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    assert world.mend(is_quiet=True) is ExitCode.FINE
    assert capsys.readouterr().out == "" and mark.exists()
    world.add("cards.healthy", lambda host: False, ("true",))
    assert world.mend(is_quiet=True) is ExitCode.PROBLEMS
    assert capsys.readouterr().out == f"{sentence('fix.left', names='card health')}\n"


def test_an_interrupted_cure_says_how_it_is_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    world = World()
    slow = ("sh", "-c", "touch mark; sleep 30")
    # Said by the cure itself, so that it has begun, however busy this machine is.
    program = f"import os, signal, time; os.kill({os.getpid()}, signal.SIGINT); time.sleep(600)"
    world.add("machine.disk", lambda host: False, (sys.executable, "-c", program), undo=(slow,))
    with interruptible(), pytest.raises(KeyboardInterrupt):
        world.mend()
    undo = data() / "fixes" / "1" / "undo.sh"
    assert capsys.readouterr().err.endswith(f"{sentence('fix.undo', path=undo)}\n")
    assert "touch mark; sleep 30" in undo.read_text(encoding="utf-8") and not mark.exists()
    assert "interrupted" in (data() / "fixes" / "1" / ".npuenv" / "journal.jsonl").read_text(encoding="utf-8")


def test_a_failure_that_was_none_before_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    world.add("cann.found", lambda host: not mark.exists(), is_automatic=False)
    assert world.mend() is ExitCode.PROBLEMS
    assert says(capsys.readouterr().out, "fix.new", names="CANN")


def test_without_a_terminal_and_without_yes_the_plan_is_shown_and_nothing_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(BadInput) as raised:
            world.mend(yes=False)
    assert raised.value.exit_code is ExitCode.INPUT
    assert f"$ touch {mark}" in capsys.readouterr().out
    assert not mark.exists() and not data().exists()


def test_the_answer_no_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    mark = tmp_path / "mark"
    world = World()
    world.add("machine.disk", lambda host: mark.exists(), ("touch", str(mark)))
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    with pytest.raises(Stop) as stopped:
        world.mend(yes=False)
    assert stopped.value.code is ExitCode.INTERRUPTED
    assert not mark.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert world.mend(yes=False) is ExitCode.FINE
    assert mark.exists()


def with_pip(folder: Path) -> Path:
    """The Python of a new environment whose pip is this one's, compiled as it is: to unpack another takes seconds."""
    venv.create(folder, symlinks=True)
    pip = importlib.metadata.distribution("pip")
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for file in pip.files or ():
        place = packages / str(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(pip.locate_file(file)), place)
    return folder / "bin" / "python"


@pytest.mark.slow
def test_pip_mends_a_real_environment_with_the_users_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of wheels is known to PIP_FIND_LINKS alone, so the step must have been given it."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "numbers", "2.4", files={"numbers_a.py": "A = 1\n"})
    python = str(with_pip(tmp_path / "env"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    world = World()
    world.add(
        "python.numpy",
        lambda host: host.run((python, "-c", "import numbers_a")).code == 0,
        (python, "-m", "pip", "install", "numbers==2.4"),
        undo=((python, "-m", "pip", "uninstall", "-y", "numbers"),),
    )
    assert world.mend() is ExitCode.FINE
    subprocess.run(["sh", str(data() / "fixes" / "1" / "undo.sh")], check=True, capture_output=True)
    assert LocalHost().run((python, "-c", "import numbers_a")).code == 1


@pytest.fixture
def overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The Python of a real environment in which triton was installed over triton-ascend; pip knows both."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, backend in (("triton-ascend", "ascend"), ("triton", "nvidia")):
        files = {"triton/__init__.py": f"OWNER = {name!r}\n", f"triton/backends/{backend}/__init__.py": ""}
        write_wheel(wheels, name, "3.2.0", files={**files, "triton/backends/__init__.py": ""})
    python = with_pip(tmp_path / "env")
    (packages,) = (tmp_path / "env").glob("lib/python3.*/site-packages")
    for name in ("triton_ascend", "triton"):
        (wheel,) = wheels.glob(f"{name}-3.2.0-*.whl")
        with zipfile.ZipFile(wheel) as files_of_wheel:  # as an installer does it, one over the other
            files_of_wheel.extractall(packages)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return str(python)


def owner(python: str) -> str:
    return subprocess.run([python, "-c", "import triton; print(triton.OWNER)"], capture_output=True, text=True).stdout


@pytest.mark.slow
def test_an_overwritten_triton_ascend_is_mended_and_the_damage_can_be_taken_back(
    overwritten: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert owner(overwritten) == "triton\n"
    words = ["doctor", "--level", "1", "--python", overwritten, "--fix", "--yes", "--json"]
    main(words)
    first = json.loads(capsys.readouterr().out)
    assert "python.triton" in first["mended"] and owner(overwritten) == "triton-ascend\n"
    main(words)
    assert "python-triton" not in [step["id"] for step in json.loads(capsys.readouterr().out)["steps"]]
    subprocess.run(["sh", first["undo"]], check=True, capture_output=True)
    assert owner(overwritten) == "triton\n"


@pytest.mark.slow
def test_nothing_is_removed_where_the_replacement_cannot_be_had(
    overwritten: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/no/such/folder")
    assert main(["doctor", "--level", "1", "--python", overwritten, "--fix", "--yes"]) == 1
    assert says(capsys.readouterr().out, "execute.step-failed", step="python-triton")
    assert owner(overwritten) == "triton\n"


@pytest.fixture
def few_files() -> Iterator[None]:
    """This machine allows only 4096 open files, which the doctor warns of with a line for the user's shell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:  # a shell can raise its limit only up to the hard one
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, max(hard, 65536)))
    except (ValueError, OSError):
        pytest.skip("may not raise the hard limit of open files")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_this_machine_is_mended_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--level", "0", "--fix", "--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "     $ ulimit -n 65536\n" in out and not data().exists()
    assert main(["doctor", "--level", "0", "--fix", "--yes"]) == 1
    text = (data() / "session.sh").read_text(encoding="utf-8")
    assert "ulimit -n 65536  # machine.open-files\n" in text
    capsys.readouterr()
    assert main(["doctor", "--level", "0", "--fix", "--yes", "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert problems(again) == []
    assert [step["state"] for step in again["steps"]] == ["already"]
    assert main(["doctor", "--level", "0", "--fix"]) == 1  # nothing to ask about


def test_what_needs_root_is_shown_with_roots_prompt_and_sentences_with_real_names() -> None:
    from npuenv.install.fix_plan import FixContext, plan_fixes
    from npuenv.report.fix import FixOutcome, plan_lines

    saved = Message("cli.saved", {"path": "/home/user1/x"})
    cure = Fix(saved, (("usermod", "-aG", "HwHiAiUser", "user1"),), is_dangerous=True, needs_root=True)
    ill = Finding("devices.openable", Status.FAIL, SAYS, (), "", cure)

    def restore(text: str) -> str:
        return text.replace("user1", "ann")

    lines = list(plan_lines(FixOutcome(plan_fixes([ill], FixContext("/s"), restore)), "en", restore))
    assert lines[-1] == "     # usermod -aG HwHiAiUser ann"
    assert says(lines[-2], "cli.saved", path="/home/ann/x")
