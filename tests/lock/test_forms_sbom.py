"""A lock as a CycloneDX document."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing
from npuenv.lock.forms import cyclonedx, installed_licences
from npuenv.lock.uv import find_uv

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = (
    LockedPackage("base", "1.0", ("0" * 64, "f" * 64), None, ("up-per",)),
    LockedPackage("up-per", "2.0+cpu", ("a" * 64,), "special", ("stack",)),
)
SOURCES = (LockedSource("vllm", "https://host/vllm.git", "v1", False, "install"),)
LOCK = Lock("tiny-1.0", "x86_64-cp311-glibc2.28", "npuenv 1, uv 2", PACKAGES, (), SOURCES)
BASE, UPPER = "pkg:pypi/base@1.0", "pkg:pypi/up-per@2.0%2Bcpu"
SOURCE = "pkg:generic/vllm@v1?vcs_url=git%2Bhttps://host/vllm.git"


def put(site: Path, name: str, *headers: str) -> None:
    folder = site / f"{name.replace('-', '_')}-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(
        "\n".join(("Metadata-Version: 2.4", f"Name: {name}", "Version: 1", *headers)) + "\n"
    )


def document(lock: Lock = LOCK, licences: dict[str, list[dict[str, Any]]] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cyclonedx(lock, licences or {}))
    return found


def test_every_package_and_source_is_a_component_with_its_hashes() -> None:
    found = {each["bom-ref"]: each for each in document()["components"]}
    assert set(found) == {BASE, UPPER, SOURCE}
    assert [each["content"] for each in found[BASE]["hashes"]] == ["0" * 64, "f" * 64]
    assert found[UPPER]["properties"] == [{"name": "npuenv:index", "value": "special"}]
    assert found[SOURCE]["externalReferences"] == [{"type": "vcs", "url": "https://host/vllm.git"}]


def test_dependencies_lead_from_the_stack_to_what_needs_what() -> None:
    found = {each["ref"]: each["dependsOn"] for each in document()["dependencies"]}
    assert found == {"tiny-1.0": sorted((UPPER, SOURCE)), UPPER: [BASE], BASE: []}


def test_the_same_lock_gives_the_same_document_and_another_one_another_number() -> None:
    assert cyclonedx(LOCK, {}) == cyclonedx(LOCK, {})
    other = Lock("tiny-1.0", LOCK.platform, LOCK.made_with, PACKAGES[:1])
    assert document(other)["serialNumber"] != document()["serialNumber"]


def test_a_lock_that_lacks_something_is_an_incomplete_composition() -> None:
    gap = Lock("tiny-1.0", LOCK.platform, LOCK.made_with, PACKAGES, (Missing("gone", "1", "not-on-index"),))
    assert [document(each)["compositions"][0]["aggregate"] for each in (LOCK, gap)] == ["complete", "incomplete"]


def test_licences_are_expressions_or_the_names_that_classifiers_and_headers_give(tmp_path: Path) -> None:
    put(tmp_path, "Up-Per", "License-Expression: apache-2.0 OR mit")
    put(tmp_path, "two", "License: BSD 3 clause", "Classifier: License :: OSI Approved :: BSD License")
    put(tmp_path, "words", "License: BSD 3 clause")
    put(tmp_path, "text", "License: Permission is hereby granted" + " to everyone" * 20)
    put(tmp_path, "none")
    found = installed_licences(tmp_path)
    assert found == {
        "up-per": [{"expression": "Apache-2.0 OR MIT"}],
        "two": [{"license": {"name": "BSD License"}}],
        "words": [{"license": {"name": "BSD 3 clause"}}],
    }
    of = {each["name"]: each.get("licenses") for each in document(licences=found)["components"]}
    assert of == {"base": None, "up-per": found["up-per"], "vllm": None}


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.long
def test_the_documents_are_valid_by_the_schema_of_cyclonedx(tmp_path: Path) -> None:
    uv, place = find_uv(), str(tmp_path / "env")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, place], check=True)
    wanted = "cyclonedx-python-lib[json-validation]==11.12.0"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", f"{place}/bin/python", wanted], check=True)
    put(tmp_path / "site", "up-per", "License-Expression: MIT")
    (tmp_path / "lock.cdx.json").write_text(cyclonedx(LOCK, installed_licences(tmp_path / "site")))
    code = (
        "import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import"
        " JsonStrictValidator as V; print(V(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))"
    )
    argv = [f"{place}/bin/python", "-c", code, str(tmp_path / "lock.cdx.json")]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "None"
