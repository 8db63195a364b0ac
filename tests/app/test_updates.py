"""What changes between two locks: versions, files of one version, packages that come and go, sources."""

from __future__ import annotations

from npuenv.app.progress import PackageChange
from npuenv.app.updates import package_changes
from npuenv.lock.file import Lock, LockedPackage, LockedSource


def lock(*packages: tuple[str, str, str], source: str = "v1") -> Lock:
    rows = tuple(LockedPackage(name, version, (digest * 8,)) for name, version, digest in packages)
    repo = LockedSource("verl", "https://example.org/verl", source, is_moving=False, how="install")
    return Lock("tiny", "x86_64-cp311-glibc2.28", "npuenv", rows, sources=(repo,))


def test_the_same_set_has_no_changes() -> None:
    assert package_changes(lock(("a", "1", "0")), lock(("a", "1", "0"))) == ()


def test_versions_packages_and_sources_are_listed_by_name() -> None:
    before = lock(("gone", "1", "0"), ("kept", "1", "0"), ("moved", "1.9", "0"))
    after = lock(("kept", "1", "0"), ("moved", "1.10", "1"), ("new", "3", "0"), source="v2")
    assert package_changes(before, after) == (
        PackageChange("gone", "1", ""),
        PackageChange("moved", "1.9", "1.10"),
        PackageChange("new", "", "3"),
        PackageChange("verl", "v1", "v2"),
    )


def test_another_file_of_the_same_version_is_a_change_that_can_be_told() -> None:
    assert package_changes(lock(("a", "1", "0")), lock(("a", "1", "7"))) == (
        PackageChange("a", "1 00000000", "1 77777777"),
    )
