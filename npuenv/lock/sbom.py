"""A lock as a CycloneDX bill of materials.

Like the other exports it holds no clock: the same lock gives the same document.
"""

from __future__ import annotations

import json
import uuid
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from npuenv import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npuenv.lock.file import Lock, LockedPackage, LockedSource

SPEC = "1.6"
_NAMESPACE = uuid.UUID("8b8f1f5e-6a52-5d0c-9d3c-0d4c6a1f2b7e")  # of serial numbers; chosen once
_LONGEST_LICENCE = 120  # letters; older wheels give the whole text in this header
_OSI = "License :: OSI Approved :: "


def cyclonedx(lock: Lock, licences: Mapping[str, list[dict[str, Any]]]) -> str:
    """The packages and sources of a lock with their hashes and dependencies, as CycloneDX JSON.

    `licences`: normalised name -> its `licenses`, as `installed_licences` gives them; a lock itself knows none.
    """
    top = {"type": "platform", "bom-ref": lock.stack, "name": lock.stack, "version": lock.platform}
    refs = {package.name: _purl(package) for package in lock.packages}
    dependencies: dict[str, set[str]] = {ref: set() for ref in (lock.stack, *refs.values())}
    for package in lock.packages:
        for dependent in package.why:
            dependencies[refs.get(dependent, lock.stack)].add(refs[package.name])
    components = [_component(package, licences.get(package.name, [])) for package in lock.packages]
    components += [_source(source, licences.get(canonicalize_name(source.name), [])) for source in lock.sources]
    dependencies[lock.stack] |= {_source_purl(source) for source in lock.sources}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, lock.hash)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "npuenv", "version": __version__}]},
            "component": top,
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(dependencies.items())],
        "compositions": [{"aggregate": "incomplete" if lock.missing else "complete", "assemblies": [lock.stack]}],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def installed_licences(packages: Path) -> dict[str, list[dict[str, Any]]]:
    """Normalised name -> the `licenses` of a CycloneDX component, from the METADATA of what is installed in a folder.

    An SPDX expression where the distribution gives one, else the names that its classifiers or its `License` give.
    """
    found = {}
    for each in metadata.distributions(path=[str(packages)]):
        if (name := each.metadata.get("Name")) and (licences := _licences(each.metadata)):
            found[canonicalize_name(name)] = licences
    return found


def _licences(headers: metadata.PackageMetadata) -> list[dict[str, Any]]:
    written = (headers.get("License-Expression") or headers.get("License") or "").strip()
    try:
        return [{"expression": str(canonicalize_license_expression(written))}] if written else _classified(headers)
    except InvalidLicenseExpression:
        pass  # a name in words, or the whole text of a licence
    if not (named := _classified(headers)) and len(written) <= _LONGEST_LICENCE and "\n" not in written:
        named = [{"license": {"name": written}}]
    return named


def _classified(headers: metadata.PackageMetadata) -> list[dict[str, Any]]:
    names = [each.removeprefix(_OSI) for each in headers.get_all("Classifier") or () if each.startswith(_OSI)]
    return [{"license": {"name": name}} for name in dict.fromkeys(names)]


def _component(package: LockedPackage, licences: list[dict[str, Any]]) -> dict[str, Any]:
    purl = _purl(package)
    row: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": package.name, "version": package.version}
    row["purl"] = purl
    if package.sha256:
        row["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in package.sha256]
    if licences:
        row["licenses"] = licences
    if package.index:
        row["properties"] = [{"name": "npuenv:index", "value": package.index}]
    return row


def _source(source: LockedSource, licences: list[dict[str, Any]]) -> dict[str, Any]:
    purl = _source_purl(source)
    row: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": source.name, "version": source.ref, "purl": purl}
    if licences:
        row["licenses"] = licences
    return {**row, "externalReferences": [{"type": "vcs", "url": source.repo}]}


def _purl(package: LockedPackage) -> str:
    """Source: the purl specification, type pypi."""
    return f"pkg:pypi/{package.name}@{quote(package.version, safe='')}"


def _source_purl(source: LockedSource) -> str:
    url = quote(f"git+{source.repo}", safe=":/")
    return f"pkg:generic/{quote(source.name)}@{quote(source.ref, safe='')}?vcs_url={url}"
