"""Run files in YAML keep to their formats: to closed schemas of our own, and to the published ones."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from npuenv.matrix import load_matrix
from npuenv.render.container.description import ContainerOptions, describe
from npuenv.render.container.formats import render_container
from npuenv.render.files import dump_yaml
from tests.render import container_schemas as schemas
from tests.render.container_reading import load_all

MATRIX = load_matrix()
WISHES = {
    "least": ("a2", ContainerOptions(image="verl:a2")),
    "most": (
        "a3",
        ContainerOptions(
            image="quay.io/team/verl:a3",
            cards="0-7",
            data=Path("/srv/my data"),
            models=Path("/srv/models"),
            shm_gib=64,
            user="1000:1000",
            command="python3 -m verl.trainer.main_ppo trainer.nnodes=1 yes 0x10",
            has_add_ons=True,
        ),
    ),
    "several nodes": ("950", ContainerOptions(image="verl:950", cards="0-7", nodes=4, user="7")),
}


def files(case: str) -> dict[str, Any]:
    hardware, wish = WISHES[case]
    container = describe(None, wish, MATRIX, hardware=hardware)
    rendered = render_container(container)
    read = {name: load_all(text) for name, text in rendered.items() if name.endswith(".yaml")}
    *users, job = read["kubernetes.yaml"]
    return {"compose.yaml": read["compose.yaml"][0], "kubernetes.yaml": job, "users": users}


@pytest.mark.parametrize("case", WISHES)
def test_files_keep_to_the_closed_schemas(case: str) -> None:
    read = files(case)
    jsonschema.validate(read["compose.yaml"], schemas.COMPOSE)
    job = read["kubernetes.yaml"]
    jsonschema.validate(job, schemas.VOLCANO_JOB if "volcano" in job["apiVersion"] else schemas.JOB)
    for users in read["users"]:
        jsonschema.validate(users, schemas.CONFIG_MAP)


@pytest.mark.parametrize("case", WISHES)
def test_every_mount_of_a_pod_has_its_volume_and_every_volume_its_mount(case: str) -> None:
    job = files(case)["kubernetes.yaml"]["spec"]
    templates = [task["template"] for task in job["tasks"]] if "tasks" in job else [job["template"]]
    for template in templates:
        names = [volume["name"] for volume in template["spec"]["volumes"]]
        mounts = template["spec"]["containers"][0]["volumeMounts"]
        assert [mount["name"] for mount in mounts] == names
        assert len(set(names)) == len(names) and len({mount["mountPath"] for mount in mounts}) == len(mounts)


def test_the_schemas_notice_a_misspelt_key_and_a_number_in_the_place_of_a_text() -> None:
    read = files("most")
    for path, file, schema in (
        (("services", "npuenv-a3", "volumes", 0, "readonly"), "compose.yaml", schemas.COMPOSE),
        (("spec", "template", "spec", "hostNetwrok"), "kubernetes.yaml", schemas.JOB),
    ):
        document = copy.deepcopy(read[file])
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = True
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, schema)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "0,1",
        "1e3",
        "0x10",
        "yes",
        "No",
        "on",
        "null",
        "~",
        "",
        "1:30",
        "-c",
        "a: b",
        "a #b",
        "*x",
        "a\nb\n",
        "@x",
        "你好",
    ],
)
def test_a_text_stays_one_for_readers_of_both_yaml_versions(text: str) -> None:
    from ruamel.yaml import YAML

    written = dump_yaml(["# head"], [{"key": [text]}])
    for version in ("1.1", "1.2"):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert reader.load(written) == {"key": [text]}
    assert written.startswith("# head\nkey:\n  - ")


def test_several_documents_are_parted() -> None:
    assert dump_yaml([], [{"a": 1}, {"b": "x"}]) == "a: 1\n---\nb: x\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packages that hold the published schemas, unpacked."""
    folder = tmp_path_factory.mktemp("published")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    names = ["docker-compose==1.29.2", "kubernetes-validate==1.37.0"]
    subprocess.run([*pip, "--target", str(folder), *names], check=True, timeout=300)
    return folder


@pytest.mark.registry
@pytest.mark.parametrize("case", WISHES)
@pytest.mark.slow
@pytest.mark.long
def test_compose_files_keep_to_the_published_schema(case: str, published: Path) -> None:
    """It is of 2021; a project's name, `create_host_path` and the content of a config came later."""
    schema = json.loads((published / "compose" / "config" / "compose_spec.json").read_text(encoding="utf-8"))
    document = files(case)["compose.yaml"]
    del document["name"]
    for config in document.get("configs", {}).values():
        config["file"] = config.pop("content")
    for service in document["services"].values():
        for volume in service["volumes"]:
            assert volume.pop("bind") == {"create_host_path": False}
    jsonschema.Draft7Validator(schema).validate(document)
    service["devcies"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(document)


@pytest.mark.registry
@pytest.mark.parametrize("case", WISHES)
@pytest.mark.long
def test_jobs_and_pods_keep_to_the_published_strict_schema(case: str, published: Path) -> None:
    folder = published / "kubernetes_validate" / "kubernetes-json-schema" / "v1.37.0-local-strict"
    document = files(case)["kubernetes.yaml"]
    if document["apiVersion"] == "batch/v1":
        checked = [("job-batch-v1.json", document)]
    else:
        tasks = document["spec"]["tasks"]
        checked = [("podtemplatespec-v1.json", task["template"]) for task in tasks]
    for name, part in checked:
        schema = json.loads((folder / name).read_text(encoding="utf-8"))
        validator = _validator(schema, folder)
        validator.validate(part)
        broken = copy.deepcopy(part)
        spec = broken["spec"]["template"]["spec"] if name.startswith("job") else broken["spec"]
        spec["hostNetwrok"] = True
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(broken)


def _validator(schema: Any, folder: Path) -> Any:
    """With the references to `_definitions.json` beside it."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT7

    definitions = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))
    registry: Registry[Any] = Registry().with_resource("_definitions.json", DRAFT7.create_resource(definitions))
    return jsonschema.Draft7Validator(schema, registry=registry)
