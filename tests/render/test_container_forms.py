"""The five forms of run file have the same devices and mounts, which reading them back shows."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npuenv.matrix import load_matrix
from npuenv.render.container.description import Container, ContainerOptions, describe
from npuenv.render.container.formats import FORMS, render_container
from tests.render import container_reading as reading
from tests.support.sentences import part, says, sentence

MATRIX = load_matrix()
SCRIPTS = [form.file for form in FORMS.values() if form.file.endswith(".sh")]
ENTRY = ("/bin/bash", "/opt/npuenv/entrypoint.sh")


def made(hardware: str = "a2", *, image: str = "verl:a2", **wish: Any) -> Container:
    return describe(None, ContainerOptions(image=image, **wish), MATRIX, hardware=hardware)


CASES = {
    "one node of a2, every card": made(),
    "two cards of a2 that are not the first": made(cards="4,7", data=Path("/srv/my data"), command="python3 a.py -x 1"),
    "three nodes of a3": made("a3", nodes=3, data=Path("/srv/data"), models=Path("/srv/models")),
    "310p": made("310p", cards="0-1", shm_gib=16, user="1000:1001"),
    "950 with add-ons": made("950", cards="0-3", has_add_ons=True),
}


@pytest.fixture
def host(tmp_path: Path) -> Any:
    return reading.Host(tmp_path)


def wanted_mounts(container: Container) -> set[tuple[str, str, bool]]:
    return {(mount.source, mount.target, mount.is_read_only) for mount in container.mounts}


@functools.cache
def files_of(case: str) -> dict[str, str]:
    return render_container(CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_all_forms_have_the_same_devices_and_mounts_and_count_cards_from_nought(case: str, host: Any) -> None:
    """The caller has set other cards: `Host.run`. One test, because it runs every script."""
    container, files = CASES[case], files_of(case)
    host.fill(container)
    read = reading.read_all(host, files)
    devices = {item.path for item in container.devices}
    with_devices = {name: set(each.devices) for name, each in read.items() if not name.startswith("kubernetes.yaml")}
    assert with_devices == dict.fromkeys(with_devices, devices)
    assert {name: set(each.mounts) for name, each in read.items()} == dict.fromkeys(read, wanted_mounts(container))
    inside = ",".join(str(number) for number in range(len(container.cards)))
    for each in read.values():
        of_user = each.environment.keys() & {"HOME", "USER", "LOGNAME"}
        assert each.environment.keys() - of_user == {"ASCEND_RT_VISIBLE_DEVICES"}
        assert each.environment["ASCEND_RT_VISIBLE_DEVICES"] == inside
    assert all(f"ASCEND_RT_VISIBLE_DEVICES={inside}" in text for text in files.values())


@pytest.mark.parametrize("case", CASES)
def test_a_pod_asks_the_device_plugin_for_as_many_cards_and_mounts_no_device(case: str) -> None:
    container = CASES[case]
    resource = {"310p": "huawei.com/Ascend310P", "950": "huawei.com/npu"}.get(
        container.hardware, "huawei.com/Ascend910"
    )
    for pod in reading.pods(files_of(case)["kubernetes.yaml"]):
        cards = {resource: len(container.cards)}
        assert pod["containers"][0]["resources"] == {"requests": cards, "limits": cards}
        assert [volume for volume in pod["volumes"] if "/dev" in str(volume.get("hostPath"))] == []


def test_no_file_but_volcanos_sets_the_variable_of_the_container_runtime() -> None:
    one, many = render_container(made()), render_container(made(nodes=2))
    (pod,) = reading.pods(one["kubernetes.yaml"])
    assert [item["name"] for item in pod["containers"][0]["env"]] == ["ASCEND_RT_VISIBLE_DEVICES"]
    fields = [pod["containers"][0]["env"][1] for pod in reading.pods(many["kubernetes.yaml"])]
    place = {"fieldRef": {"fieldPath": "metadata.annotations['huawei.com/Ascend910']"}}
    assert fields == [{"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": place}] * 2
    scripts = [one[name] for name in SCRIPTS]
    assert [line for text in scripts for line in text.splitlines() if "ASCEND_VISIBLE" in line and line[0] != "#"] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_one_sentence_names_everything_that_the_host_lacks(name: str, host: Any) -> None:
    container = made(data=Path("/srv/my data"))
    lacking = ("/dev/davinci3", "/dev/hisi_hdc", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/srv/my data")
    host.fill(container, leave_out=lacking)
    code, said, calls = host.run(render_container(container)[name])
    assert code == 1
    assert said == sentence("container.missing", places=" " + " ".join(lacking)) + "\n"
    assert [call for call in calls if "/opt/npuenv" in str(call.words) or call.program != "srun"] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_folder_in_the_place_of_a_file_counts_as_lacking(name: str, host: Any) -> None:
    """Docker makes such folders where a mount's source was missing once."""
    container = made()
    host.fill(container, leave_out=("/usr/local/bin/npu-smi",))
    (host.root / "usr/local/bin/npu-smi").mkdir(parents=True)
    code, said, _ = host.run(render_container(container)[name])
    assert code == 1 and ": /usr/local/bin/npu-smi. Install" in said


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_optional_place_is_mounted_only_where_it_exists(name: str, host: Any) -> None:
    container = made("950", cards="0", has_add_ons=True)
    absent = ("/dev/uburma", "/etc/hccl_rootinfo.json", "/usr/local/Ascend/add-ons")
    host.fill(container, leave_out=absent)
    read = reading.read_script(host, render_container(container)[name])
    assert {item.path for item in container.devices} - set(read.devices) == {"/dev/uburma"}
    assert {mount[0] for mount in wanted_mounts(container) - set(read.mounts)} == set(absent[1:])


def test_a_source_that_is_missing_is_an_error_and_never_made() -> None:
    files = render_container(made(data=Path("/srv/data")))
    (service,) = reading.load_yaml(files["compose.yaml"])["services"].values()
    assert [volume["bind"] for volume in service["volumes"]] == [{"create_host_path": False}] * 6
    (pod,) = reading.pods(files["kubernetes.yaml"])
    kinds = {volume["hostPath"]["path"]: volume["hostPath"]["type"] for volume in pod["volumes"]}
    assert kinds == {mount.source: mount.kind.capitalize() for mount in made(data=Path("/srv/data")).mounts}
    assert "--volume" not in files["docker-run.sh"]


def test_hccn_conf_may_be_missing_on_one_node_and_on_a3_but_not_on_several_nodes_of_a2() -> None:
    def needs(container: Container) -> dict[str, bool]:
        return {mount.source: mount.is_required for mount in container.mounts}

    assert [needs(made(chips))["/etc/hccn.conf"] for chips in ("a2", "a3")] == [False, False]
    assert [needs(made(chips, nodes=2))["/etc/hccn.conf"] for chips in ("a2", "a3")] == [True, False]
    assert "/etc/hccn.conf" not in needs(made("310p", cards="0"))
    one = render_container(made("a3", nodes=2), ["compose", "k8s", "run"])
    several = render_container(made("a2", nodes=2), ["compose", "k8s", "run"])
    said = sentence("container.head-optional", places="/etc/hccn.conf")
    assert {name for name, text in one.items() if said in text} == {"compose.yaml", "kubernetes.yaml"}
    assert {name for name, text in several.items() if said in text} == set()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("docker-run.sh", (), ("python3", "my app.py")),
        ("docker-run.sh", ("bash", "-c", "echo $HOME"), ("bash", "-c", "echo $HOME")),
        ("apptainer.sh", (), (*ENTRY, "python3", "my app.py")),
        ("apptainer.sh", ("ls", "a b"), (*ENTRY, "ls", "a b")),
        ("slurm.sh", (), (*ENTRY, "python3", "my app.py")),
        ("slurm.sh", ("ls", "*"), (*ENTRY, "ls", "*")),
    ],
)
def test_words_given_to_a_script_are_the_command_else_the_rendered_one(
    name: str, given: tuple[str, ...], expected: tuple[str, ...], host: Any
) -> None:
    container = made(command="python3 'my app.py'")
    host.fill(container)
    assert reading.read_script(host, render_container(container)[name], *given).command == expected


def test_without_a_command_a_shell_waits_and_a_batch_job_shows_the_cards(host: Any) -> None:
    container = made()
    host.fill(container)
    files = render_container(container)
    commands = [reading.read_script(host, files[name]).command for name in SCRIPTS]
    assert commands == [(), (*ENTRY, "npu-smi", "info"), (*ENTRY, "/bin/bash")]
    (service,) = reading.load_yaml(files["compose.yaml"])["services"].values()
    (pod,) = reading.pods(files["kubernetes.yaml"])
    assert (service["stdin_open"], service["tty"]) == (True, True)
    assert (pod["containers"][0]["stdin"], pod["containers"][0]["tty"]) == (True, True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_commands_exit_code_is_the_scripts(name: str, host: Any) -> None:
    container = made(nodes=2)
    host.fill(container)
    code, _, _ = host.run(render_container(container)[name], "true", ends_with=7)
    assert code == 7
    assert sorted(host.root.glob("npuenv.*")) == []  # Apptainer's folder for /tmp is gone


def test_another_engine_takes_the_same_words(host: Any) -> None:
    container = made()
    host.fill(container)
    script = render_container(container)["docker-run.sh"]
    _, _, calls = host.run(script.replace("set -eu", "set -eu\nNPUENV_ENGINE=podman", 1))
    _, _, others = host.run(script)
    assert (calls[0].program, others[0].program) == ("podman", "docker")
    assert calls[0].words == others[0].words


@pytest.mark.parametrize(
    ("user", "is_image_root", "is_root"),
    [
        ("1000:1001", None, False),
        ("7", True, False),
        ("0:0", False, True),
        (None, True, True),
        (None, False, False),
        (None, None, None),
    ],
)
def test_a_user_who_is_not_root_gets_the_group_of_the_cards(
    user: str | None, is_image_root: bool | None, is_root: bool | None, host: Any
) -> None:
    wish = ContainerOptions(image="verl:a2", cards="4,7", user=user)
    container = describe(None, wish, MATRIX, hardware="a2", is_image_root=is_image_root)
    host.fill(container)
    files = render_container(container)
    group = str((host.root / "dev/davinci4").stat().st_gid)
    _, _, calls = host.run(files["docker-run.sh"])
    words = calls[-1].words
    found = [words[at + 1] for at, word in enumerate(words) if word == "--group-add"]
    assert found == ([] if is_root else [group])
    (service,) = reading.load_yaml(files["compose.yaml"])["services"].values()
    assert service.get("group_add") == (["${NPUENV_CARDS_GID:?}"] if is_root is False else None)
    assert ("export NPUENV_CARDS_GID=$(stat -c %g /dev/davinci4)" in files["compose.yaml"]) is (is_root is False)
    assert ("add group_add: [N] below npuenv-a2" in files["compose.yaml"]) is (is_root is None)
    assert ("add supplementalGroups: [N]" in files["kubernetes.yaml"]) is (is_root is not True)
    assert (says(files["kubernetes.yaml"].replace("#", " "), "container.note-group-image")) is (is_root is None)


@pytest.mark.parametrize(
    ("user", "entry"),
    [
        ("1000:1001", "npuenv:x:1000:1001:npuenv:/tmp:/bin/bash"),
        ("7", "npuenv:x:7:0:npuenv:/tmp:/bin/bash"),
        ("0:0", None),
        (None, None),
    ],
)
def test_a_user_whom_the_image_may_not_know_has_a_name_a_home_and_an_entry(
    user: str | None, entry: str | None, host: Any
) -> None:
    container = made(user=user)
    host.fill(container)
    files = render_container(container)
    _, _, calls = host.run(files["docker-run.sh"])
    compose, documents = reading.load_yaml(files["compose.yaml"]), reading.load_all(files["kubernetes.yaml"])
    told = [calls[-1].environ.get("USERS"), compose.get("configs", {}).get("users", {}).get("content")]
    told.append(documents[0].get("data", {}).get("passwd"))
    assert told == ([f"root:x:0:0:root:/root:/bin/bash\n{entry}\n"] * 3 if entry else [None] * 3)
    assert list(host.root.glob("npuenv.*")) == []  # docker-run.sh takes its file away
    (service,) = compose["services"].values()
    assert service.get("configs") == ([{"source": "users", "target": "/etc/passwd"}] if entry else None)
    (pod,) = reading.pods(files["kubernetes.yaml"])
    volumes = {volume["name"]: volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert volumes == ({"users": documents[0]["metadata"]["name"]} if entry else {})
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in volumes]
    assert [(each["mountPath"], each["subPath"]) for each in mounts] == [("/etc/passwd", "passwd")] * bool(entry)
    read = [reading.read_script(host, files["docker-run.sh"]), reading.read_compose(files["compose.yaml"])]
    read += map(reading.read_pod, reading.pods(files["kubernetes.yaml"]))
    names = [tuple(each.environment.get(name) for name in ("HOME", "USER", "LOGNAME")) for each in read]
    assert names == [("/tmp", "npuenv", "npuenv") if entry else (None,) * 3] * 3
    assert all("HOME=" not in files[name] for name in ("slurm.sh", "apptainer.sh"))  # the caller's stays


def test_the_users_file_is_gone_after_a_failure_too(host: Any) -> None:
    container = made(user="7")
    host.fill(container)
    code, _, _ = host.run(render_container(container)["docker-run.sh"], ends_with=9)
    assert (code, list(host.root.glob("npuenv.*"))) == (9, [])


def test_weights_inside_the_data_folder_need_a_place_there(host: Any) -> None:
    container = made(data=Path("/srv/data"), models=Path("/srv/models"))
    host.fill(container, leave_out=("/srv/data/models",))
    files = render_container(container)
    assert [
        name for name, text in files.items() if not says(text, "container.head-mount-points", places="/srv/data/models")
    ] == []
    for name in SCRIPTS:
        code, said, _ = host.run(files[name])
        assert code == 1 and says(said, "container.missing", places=" /srv/data/models")
    assert made(data=Path("/srv/data"), models=Path("/srv/data/models")).mount_points == ()
    assert made(data=Path("/srv/data")).mount_points == made(models=Path("/srv/models")).mount_points == ()


def test_a_blank_in_a_folder_stays_one_word_for_enroots_fstab() -> None:
    script = render_container(made(data=Path("/srv/my data")))["slurm.sh"]
    (mounts,) = [line for line in script.splitlines() if line.startswith("mounts='")]
    assert "/srv/my\\040data:/data" in mounts and " " not in mounts


def test_a_job_of_slurm_asks_for_all_that_its_nodes_have() -> None:
    for hardware, cards, expected in (
        ("a2", "4-7", 8),
        ("a2", "0-8", 9),
        ("a3", "0", 16),
        ("950", "2-5", 6),
    ):
        lines = render_container(made(hardware, cards=cards))["slurm.sh"].splitlines()
        assert {f"#SBATCH --gres=npu:{expected}", "#SBATCH --exclusive", "#SBATCH --mem=0"} <= set(lines)


def test_what_a_950_need_not_have_is_not_asked_of_it_and_an_old_table_of_ranks_is_spoken_of() -> None:
    for name, text in render_container(made("950", cards="0")).items():
        assert "devmm_svm" not in text, name
        assert "version 2.0" in text and "EI0014" in text, name
    assert all("EI0014" not in text for text in render_container(made()).values())
    devices = "/dev/davinciN and /dev/davinci_manager, {}/dev/hisi_hdc."
    said = [render_container(made(chips, cards="0"))["kubernetes.yaml"] for chips in ("a2", "950")]
    assert devices.format("/dev/devmm_svm, ") in said[0] and devices.format("") in said[1]


def test_kubernetes_says_what_volcano_refuses_and_where_an_image_has_to_be() -> None:
    def said(sentence: str, hardware: str, **wish: Any) -> bool:
        return sentence in render_container(made(hardware, **wish))["kubernetes.yaml"]

    even = "it accepts even numbers"
    assert said(even, "a3", nodes=2, cards="0-2")
    assert not said(even, "a3", nodes=2) and not said(even, "a3", cards="0-2") and not said(even, "a2", nodes=2)

    def warned(**wish: Any) -> bool:
        text = render_container(made("a2", **wish))["kubernetes.yaml"].replace("#", " ")
        return says(text, "container.note-local-image", image=part("verl:a2"))

    assert warned() and warned(image="localhost/verl:a2") and not warned(image="quay.io/team/verl:a2")


def test_slurms_directives_stand_before_its_first_command() -> None:
    lines = render_container(made())["slurm.sh"].splitlines()
    first = next(at for at, line in enumerate(lines) if line and line[0] != "#")
    assert max(at for at, line in enumerate(lines) if line.startswith("#SBATCH")) < first


def test_an_image_of_a_registry_is_taken_from_there_and_another_from_a_file(host: Any) -> None:
    far, near = made(image="registry.example.com:5000/team/verl:a2"), made()
    podmans = made(image="localhost/verl:a2")
    for container, expected in (
        (far, ("docker://registry.example.com:5000/team/verl:a2", "registry.example.com:5000#team/verl:a2")),
        (near, ("/npuenv-a2.sif", "/npuenv-a2.sqsh")),
        (podmans, ("/npuenv-a2.sif", "/npuenv-a2.sqsh")),
    ):
        host.fill(container)
        files = render_container(container)
        read = tuple(reading.read_script(host, files[name]).image for name in ("apptainer.sh", "slurm.sh"))
        assert read == expected
    (host.root / "npuenv-a2.sif").unlink()
    code, said, calls = host.run(render_container(near)["apptainer.sh"])
    assert (code, calls) == (1, [])
    assert said.endswith("apptainer build npuenv-a2.sif docker-daemon:verl:a2\n")
    saved = (
        "podman save -o npuenv-a2.tar localhost/verl:a2 && apptainer build npuenv-a2.sif docker-archive:npuenv-a2.tar"
    )
    assert host.run(render_container(podmans)["apptainer.sh"])[1].endswith(f"{saved}\n")
    assert "enroot import -o npuenv-a2.sqsh podman://localhost/verl:a2" in render_container(podmans)["slurm.sh"]


def test_shared_memory_of_its_own_replaces_the_hosts() -> None:
    host_wide, own = render_container(made()), render_container(made(shm_gib=64))
    assert "    --ipc host \\\n" in host_wide["docker-run.sh"] and "shm" not in host_wide["docker-run.sh"]
    assert "    --ipc private --shm-size 64g \\\n" in own["docker-run.sh"]
    (service,) = reading.load_yaml(own["compose.yaml"])["services"].values()
    assert (service["ipc"], service["shm_size"]) == ("private", "64gb")
    (pod,) = reading.pods(own["kubernetes.yaml"])
    assert "hostIPC" not in pod and reading.pods(host_wide["kubernetes.yaml"])[0]["hostIPC"] is True
    assert pod["volumes"][-1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert pod["containers"][0]["volumeMounts"][-1]["mountPath"] == "/dev/shm"


def test_limits_network_and_user_reach_every_form_that_has_them() -> None:
    files = render_container(made(user="1000:1001"))
    assert "    --network host \\\n" in files["docker-run.sh"] and "    --user 1000:1001 \\\n" in files["docker-run.sh"]
    assert "    --ulimit nofile=65536:65536 \\\n" in files["docker-run.sh"]
    (service,) = reading.load_yaml(files["compose.yaml"])["services"].values()
    assert (service["network_mode"], service["user"], service["init"]) == ("host", "1000:1001", True)
    assert service["ulimits"] == {"nofile": {"soft": 65536, "hard": 65536}}
    (pod,) = reading.pods(files["kubernetes.yaml"])
    assert pod["securityContext"] == {"runAsUser": 1000, "runAsGroup": 1001}
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert all("ulimit -n 65536" in files[name] for name in ("slurm.sh", "apptainer.sh"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_scripts_are_clean_for_sh_and_shellcheck(case: str, lang: str, tmp_path: Path) -> None:
    files = render_container(CASES[case], lang=lang)
    paths = []
    for name in SCRIPTS:
        (tmp_path / name).write_text(files[name], encoding="utf-8")
        paths.append(str(tmp_path / name))
        shell = files[name].partition("\n")[0].removeprefix("#!")
        assert subprocess.run([shell, "-n", paths[-1]], capture_output=True, check=False).stderr == b""
    found = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run([found, "--severity=style", *paths], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_same_values_give_the_same_bytes_and_the_head_says_what_they_are(lang: str) -> None:
    container = CASES["three nodes of a3"]
    once, again = (render_container(container, version="9.8.7", lang=lang) for _ in range(2))
    assert once == again
    assert [name for name, text in once.items() if "# npuenv.run/1 verl:a2\n" not in text] == []
    assert [name for name, text in once.items() if "npuenv 9.8.7" not in text] == []
    assert [name for name, text in once.items() if os.getcwd() in text] == []
    cards = [name for name, text in once.items() if " 0-15" in text or "：0-15" in text]
    assert cards == [name for name in once if name != "kubernetes.yaml"]


def test_only_the_forms_asked_for_are_rendered() -> None:
    assert list(render_container(made(), ["slurm", "run"])) == ["slurm.sh", "docker-run.sh"]
    assert list(render_container(made())) == [form.file for form in FORMS.values()]
