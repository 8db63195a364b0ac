"""`npuenv render-docker` with its forms: which files it writes where, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.render.container.formats import FORMS
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")

STACK = ["render-docker", "verl-0.7.1-cann8.5.0", "--hardware", "a2", "--os", "ubuntu22.04"]
FOLDER = "verl-0.7.1-cann8.5.0.a2.ubuntu22.04"
DIGEST = "sha256:" + "ab" * 32
RUN_FILES = sorted(form.file for form in FORMS.values())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "home")


def test_without_as_there_is_the_dockerfile_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STACK, "-o", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == [str(tmp_path / FOLDER)]
    assert names(tmp_path) == [FOLDER]
    assert "Dockerfile" in names(tmp_path / FOLDER)


@pytest.mark.slow
def test_all_forms_lie_beside_the_image_and_leave_its_folder_alone(tmp_path: Path) -> None:
    assert main([*STACK, "-o", str(tmp_path)]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / FOLDER).iterdir()}
    assert main([*STACK, "-o", str(tmp_path), "--as", "all"]) == 0
    assert names(tmp_path) == [FOLDER, f"{FOLDER}.run"]
    assert names(tmp_path / f"{FOLDER}.run") == RUN_FILES
    assert {path.name: path.read_bytes() for path in (tmp_path / FOLDER).iterdir()} == before
    assert main([*STACK, "-o", str(tmp_path)]) == 0  # the run files do not keep the image from being rendered again


def test_run_files_name_the_image_and_entry_point_of_the_dockerfile_beside_them(tmp_path: Path) -> None:
    assert main([*STACK, "-o", str(tmp_path), "--as", "dockerfile,slurm"]) == 0
    dockerfile = (tmp_path / FOLDER / "Dockerfile").read_text(encoding="utf-8")
    script = (tmp_path / f"{FOLDER}.run" / "slurm.sh").read_text(encoding="utf-8")
    image = script.split("dockerd://")[1].split("'")[0]
    assert f"docker build -t {image} ." in dockerfile
    (entry,) = [line for line in dockerfile.splitlines() if line.startswith("ENTRYPOINT ")]
    assert " ".join(json.loads(entry.removeprefix("ENTRYPOINT "))) in script.splitlines()[-1]


def test_forms_can_be_repeated_or_listed_and_need_no_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*STACK, "-o", str(tmp_path), "--as", "run, k8s", "--as", "slurm,run"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == [f"{FOLDER}.run/{name}" for name in ("docker-run.sh", "kubernetes.yaml", "slurm.sh")]
    assert document["written"] == [
        str(tmp_path / f"{FOLDER}.run" / name) for name in ("docker-run.sh", "kubernetes.yaml", "slurm.sh")
    ]
    assert names(tmp_path) == [f"{FOLDER}.run"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == []


def test_every_option_reaches_the_files(tmp_path: Path) -> None:
    words = ["--cards", "4,7", "--nodes", "2", "--data", "/srv/d", "--models", "/srv/m", "--image", "x.io/verl:1"]
    words += ["--name", "grpo", "--command", "python3 a.py", "--user", "7:8", "--shm-gib", "9", "--add-ons"]
    assert main([*STACK, "-o", str(tmp_path), "--as", "run", *words]) == 0
    script = (tmp_path / f"{FOLDER}.run" / "docker-run.sh").read_text(encoding="utf-8")
    for part in (
        "--device /dev/davinci4:/dev/davinci4 ",
        "--device /dev/davinci7:/dev/davinci7 ",
        "--mount type=bind,source=/srv/d,target=/data ",
        "--mount type=bind,source=/srv/m,target=/data/models ",
        "source=/usr/local/Ascend/add-ons,target=/usr/local/Ascend/add-ons,readonly",
        'set -- x.io/verl:1 "$@"',
        "--name grpo ",
        "set -- python3 a.py;",
        "--user 7:8 ",
        "--ipc private --shm-size 9g ",
        "# For 2 identical nodes",
    ):
        assert part in script, part
    assert "davinci0" not in script


def test_an_edited_file_is_kept_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*STACK, "-o", str(tmp_path), "--as", "compose"]
    assert main(words) == 0
    file = tmp_path / f"{FOLDER}.run" / "compose.yaml"
    rendered = file.read_bytes()
    file.write_text("mine")
    assert main(words) == 2
    assert file.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert file.read_bytes() == rendered


@pytest.mark.slow
def test_an_edited_dockerfile_is_kept_without_force_and_nothing_is_written_where_one_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*STACK, "-o", str(tmp_path), "--as", "dockerfile,compose"]
    assert main(words) == 0
    dockerfile, compose = tmp_path / FOLDER / "Dockerfile", tmp_path / f"{FOLDER}.run" / "compose.yaml"
    rendered = dockerfile.read_text(encoding="utf-8")
    dockerfile.write_text(rendered + "RUN echo mine\n", encoding="utf-8")
    capsys.readouterr()
    assert main([*STACK, "-o", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says(said, "render.exists", files=f"{FOLDER}/Dockerfile") and "--force" in said
    compose.write_text("mine")
    assert main(words) == 2
    assert dockerfile.read_text(encoding="utf-8").endswith("RUN echo mine\n")
    dockerfile.unlink()  # an image's folder that would be written
    assert main(words) == 2
    assert not dockerfile.exists() and compose.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert dockerfile.read_text(encoding="utf-8") == rendered


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--as", "kubernets"], ["'kubernets'", "--as k8s"]),
        (["--as", "dockrefile"], ["--as dockerfile"]),
        (["--as", "run,"], ["--as ''"]),
        (["--as", "Singularity"], ["--as apptainer"]),
        (["--as", "run", "--cards", "0-99"], ["no card 99", "15"]),
        (["--as", "run", "--cards", "1,1"], [sentence("container.card-twice", card=1, cards="'1,1'")]),
        (["--as", "run", "--data", "data"], ["--data /srv/data"]),
        (["--as", "run", "--data", "/x'y"], ["--data", "quotes"]),
        (["--as", "run", "--data", "/x\ny"], ["--data", sentence("render.unsafe-value-hint")]),
        (["--as", "run", "--name", "a$(b)"], ["a$(b)", sentence("container.use", near="a-b")]),
        (["--as", "run", "--nodes", "two"], ["--nodes"]),
        (["--cards", "0-3"], [sentence("container.needs-form", options="--cards"), "--as run"]),
        (["--as", "dockerfile", "--nodes", "2", "--add-ons"], ["--nodes, --add-ons"]),
        (["--as", "run", "--command="], ["--command", sentence("container.no-words-hint")]),
        (
            ["--as", "run,k8s", "--image-user", "me"],
            [
                sentence("container.image-needs-dockerfile", options="--image-user", forms="run,k8s"),
                "--as dockerfile,run,k8s",
            ],
        ),
        (["--as", "run", "--base-digest", DIGEST, "--image-user", "me"], ["--base-digest, --image-user"]),
        (["--base-digest", "md5:1"], ["'md5:1'", "sha256:"]),
        (["--image-user", "a b"], ["'a b'", "lower-case"]),
        (
            ["--check", "--as", "run", "--user", "7"],
            [sentence("container.check-alone", options="--as, --user"), sentence("container.check-alone-hint")],
        ),
        (["--check", "--base-digest", "xx", "--cards", "99"], ["--base-digest, --cards"]),
        (["--check", "--force", "--without-doctor", "--image-user", "me"], ["--image-user, --without-doctor, --force"]),
    ],
)
def test_what_cannot_be_is_one_sentence_with_exit_2_and_writes_nothing(
    words: list[str], named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*STACK, "-o", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert [name for name in named if name not in said] == []
    assert not (tmp_path / "out").exists()


def test_a_stack_without_cards_has_no_run_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render-docker", "cpu", "--arch", "x86_64", "-o", str(tmp_path / "out"), "--as", "run"]) == 2
    assert says(capsys.readouterr().err, "container.no-cards", stack="cpu")
    assert not (tmp_path / "out").exists()


def test_the_sentences_of_files_are_in_the_language_asked_for(tmp_path: Path) -> None:
    assert main([*STACK, "-o", str(tmp_path), "--as", "run", "--lang", "zh"]) == 0
    script = (tmp_path / f"{FOLDER}.run" / "docker-run.sh").read_text(encoding="utf-8")
    assert script.startswith(f"#!/bin/sh\n# npuenv.run/1 {FOLDER}\n")
    assert "本机缺少容器所需的内容" in script


def test_without_a_folder_and_without_check_the_option_that_lacks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(STACK) == 2
    assert "-o DIR" in capsys.readouterr().err
    assert names(tmp_path) == []


def test_the_doctor_goes_into_the_image_and_its_health_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*STACK, "-o", str(tmp_path), "--without-doctor", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["files"]
    assert main([*STACK, "-o", str(tmp_path), "--json", "--force"]) == 0
    assert set(json.loads(capsys.readouterr().out)["files"]) == {*plain, f"{FOLDER}/npuenv-doctor.pyz"}
    lines = (tmp_path / FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    (copied,) = [line for line in lines if line.startswith("COPY")]
    (health,) = [line for line in lines if line.startswith("HEALTHCHECK")]
    assert '"npuenv-doctor.pyz", "/opt/npuenv/"]' in copied
    command = json.loads(health.partition(" CMD ")[2])
    assert command[:4] == ["/bin/bash", "/opt/npuenv/entrypoint.sh", "python3", "/opt/npuenv/healthcheck.py"]
    assert command[-1] == "--doctor" and "torch==2.8.0" in command
    assert not [line for line in lines if line.startswith("RUN") and "--doctor" in line]  # a build has no session
    words = [sys.executable, str(tmp_path / FOLDER / "npuenv-doctor.pyz"), "--version"]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert main([*STACK, "-o", str(tmp_path), "--without-doctor", "--json", "--force"]) == 0  # again, without it
    assert json.loads(capsys.readouterr().out)["files"] == plain
    assert not (tmp_path / FOLDER / "npuenv-doctor.pyz").exists()
    assert main([*STACK, "-o", str(tmp_path), "--with-doctor", "--as", "run"]) == 2
    assert "--with-doctor" in capsys.readouterr().err


def test_an_option_without_its_text_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*STACK, "--as", "run", "-o", str(tmp_path), "--command", ""]) == 2
    assert says(capsys.readouterr().err, "cli.empty-value", option="--command")


def test_check_writes_nothing_and_lists_every_difference_in_text_as_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*STACK, "--check", "-o", "out"]) == 0
    first, *listed = capsys.readouterr().out.splitlines()
    assert main([*STACK, "--check", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    differences = document.pop("differences")
    published = "verl-project/verl docker/ascend/Dockerfile.ascend_8.5.0_a2_v0.7.1"
    assert document.pop("upstream").startswith(f"{published} @")
    assert document == {"schema": "npuenv.upstream/1", "exit": 0, "stack": "verl-0.7.1-cann8.5.0", "arch": "x86_64"}
    assert published in first and says(first, "render.upstream-is", stack="verl-0.7.1-cann8.5.0", num=len(listed))
    assert len(differences) == len(listed) > 5
    assert {"kind": "source", "name": "verl", "theirs": "release/v0.7.1", "ours": "v0.7.1"} in differences
    assert says(
        "\n".join(listed), "render.upstream-source-differs", name="verl", theirs="release/v0.7.1", ours="v0.7.1"
    )
    assert [each["name"] for each, line in zip(differences, listed, strict=True) if each["name"] not in line] == []
    assert names(tmp_path) == []


def test_check_breaks_its_lines_where_a_terminal_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*STACK, "--check"]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main([*STACK, "--check"]) == 0
    folded = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 100
    assert [line for line in folded.splitlines() if len(line) > 60 and len(line.split()) > 1] == []
    assert folded.replace("\n    ", " ") == whole
    assert main([*STACK, "--check", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_check_compares_the_architecture_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STACK, "--check", "--json", "--arch", "aarch64"]) == 0
    assert json.loads(capsys.readouterr().out)["arch"] == "aarch64"


def test_check_says_where_no_published_dockerfile_corresponds(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["render-docker", "cpu", "--arch", "x86_64", "--check"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["upstream"], document["differences"]) == (None, [])
    assert main(words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_digest_pins_the_base_and_without_one_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STACK, "-o", str(tmp_path / "pinned"), "--base-digest", DIGEST]) == 0
    pinned = capsys.readouterr().out
    assert main([*STACK, "-o", str(tmp_path / "open")]) == 0
    unpinned = capsys.readouterr().out
    assert says(unpinned, "render.base-unpinned") and not says(pinned, "render.base-unpinned")
    texts = [(tmp_path / place / FOLDER / "Dockerfile").read_text(encoding="utf-8") for place in ("pinned", "open")]
    assert [f'@{DIGEST}"' in text for text in texts] == [True, False]
    base = next(line for line in texts[0].splitlines() if line.startswith("ARG NPUENV_BASE_IMAGE="))
    assert base.endswith(f'/cann@{DIGEST}"')


@pytest.mark.parametrize(("words", "expected"), [([], "root"), (["--image-user", "trainer"], "trainer")])
def test_the_user_named_owns_and_runs_the_image(words: list[str], expected: str, tmp_path: Path) -> None:
    assert main([*STACK, "-o", str(tmp_path), *words, "--as", "dockerfile,run"]) == 0
    lines = (tmp_path / FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("ARG NPUENV_USER=")] == [f'ARG NPUENV_USER="{expected}"']
    assert "USER ${NPUENV_USER}" in lines
    script = (tmp_path / f"{FOLDER}.run" / "docker-run.sh").read_text(encoding="utf-8")
    assert ('--group-add "$(stat -c %g /dev/davinci0)"' in script) is (expected != "root")
