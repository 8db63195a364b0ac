"""Breaks of installed files and of their metadata, one function each. `breaks.toml` says what has to be found."""

from __future__ import annotations

import os
import platform
import shutil
import zipfile
from typing import TYPE_CHECKING

from tests.doctor.broken.wheels import SHORT, SUFFIX, Distribution, build, library, module, numpy, plain

if TYPE_CHECKING:
    from tests.doctor.broken.bench import Bench

_CPU = "torch/lib/libtorch_cpu.so"


def numpy_half_deleted(bench: Bench) -> None:
    """Every second file of numpy is gone, as after a removal that was broken off."""
    for path in sorted((bench.site / "numpy").glob("*.py"))[1::2]:
        path.unlink()


def package_folder_removed(bench: Bench) -> None:
    """`rm -r numpy`, and the metadata stays."""
    shutil.rmtree(bench.site / "numpy")


def torch_libraries_deleted(bench: Bench) -> None:
    """Somebody made room: torch/lib holds no library any more."""
    for path in (bench.site / "torch/lib").glob("*.so"):
        path.unlink()


def pip_cut_short(bench: Bench) -> None:
    """pip itself is damaged: what would mend it is uv."""
    bench.install(plain("pip", "25.1"))
    path = bench.site / "pip/__init__.py"
    bench.put("pip/__init__.py", path.read_bytes()[:-3])


def library_emptied(bench: Bench) -> None:
    """A full disk leaves a library of no bytes."""
    bench.put(_CPU, b"")


def library_cut_in_half(bench: Bench) -> None:
    """A copy that was broken off."""
    data = (bench.site / _CPU).read_bytes()
    bench.put(_CPU, data[: len(data) // 2])


def library_of_another_machine(bench: Bench) -> None:
    """The same bytes with the machine of another architecture in the ELF header."""
    data = bytearray((bench.site / _CPU).read_bytes())
    data[18:20] = (62 if platform.machine() == "aarch64" else 183).to_bytes(2, "little")
    bench.put(_CPU, bytes(data))


def library_needs_a_missing_one(bench: Bench) -> None:
    """A library that needs libc10.so, which no folder of the loader has."""
    bench.change(_CPU, b"\0libc.so.6\0", b"\0libc10.so\0")


def library_is_a_web_page(bench: Bench) -> None:
    """A download behind a portal: HTML where a library should be."""
    bench.put(_CPU, "<!DOCTYPE html><title>Sign in</title>")


def links_to_a_cleaned_cache(bench: Bench) -> None:
    """uv's link mode `symlink`, after the cache was cleaned: every library is a link to nothing."""
    for path in (bench.site / "torch/lib").glob("*.so"):
        path.unlink()
        path.symlink_to(bench.prefix / "cache" / path.name)


def links_in_a_circle(bench: Bench) -> None:
    """A folder that is a link to itself."""
    shutil.rmtree(bench.site / "torch/lib")
    (bench.site / "torch/lib").symlink_to("lib")


def record_missing(bench: Bench) -> None:
    """RECORD was left out of a copy."""
    (bench.info("numpy") / "RECORD").unlink()


def record_of_garbage(bench: Bench) -> None:
    """RECORD holds zero bytes and no text, as a crash of a file system leaves it."""
    bench.put(
        bench.info("numpy") / "RECORD", b"numpy/__init__.py\0,sha256=\xff\xfe,\0\n" + bytes(4096) + b'\xff,,\n"\n'
    )


def metadata_missing(bench: Bench) -> None:
    """METADATA was left out of a copy."""
    (bench.info("numpy") / "METADATA").unlink()


def metadata_of_broken_bytes(bench: Bench) -> None:
    """METADATA holds bytes that are no text."""
    bench.put(bench.info("numpy") / "METADATA", b"\xff\xfe\0\0\x80Name\0: num\xffpy\n" * 20)


def metadata_is_a_folder(bench: Bench) -> None:
    """A folder where the file METADATA should be: a bind mount whose source did not exist."""
    (bench.info("numpy") / "METADATA").unlink()
    (bench.info("numpy") / "METADATA").mkdir()


def dist_info_emptied(bench: Bench) -> None:
    """The dist-info folder is there and holds nothing."""
    for path in bench.info("torch").iterdir():
        path.unlink()


def dist_info_removed(bench: Bench) -> None:
    """The metadata of torch is gone and torch is there: nothing knows its version."""
    shutil.rmtree(bench.info("torch"))


def dist_info_twice(bench: Bench) -> None:
    """An upgrade that was broken off: the metadata of two versions of numpy."""
    shutil.copytree(bench.info("numpy"), bench.site / "numpy-2.2.6.dist-info")
    bench.change("numpy-2.2.6.dist-info/METADATA", b"Version: 1.26.4", b"Version: 2.2.60")


def leftover_of_pip(bench: Bench) -> None:
    """What pip renames before it removes, and leaves when it is killed."""
    shutil.copytree(bench.site / "numpy", bench.site / "~umpy")
    shutil.copytree(bench.info("numpy"), bench.site / "~umpy-1.26.4.dist-info")


def leftover_with_foreign_bytes(bench: Bench) -> None:
    """A leftover whose name is no UTF-8."""
    os.makedirs(os.path.join(os.fsencode(bench.site), b"~rch\xff\xe9"))


def origin_of_broken_json(bench: Bench) -> None:
    """direct_url.json was cut off."""
    bench.put(bench.info("numpy") / "direct_url.json", '{"url": "file:///src/nu')


def origin_nested_without_end(bench: Bench) -> None:
    """direct_url.json with more brackets than a reader can follow."""
    bench.put(bench.info("numpy") / "direct_url.json", "[" * 200_000)


def file_altered_at_equal_size(bench: Bench) -> None:
    """One digit of a module of torch is another."""
    bench.change("torch/optim.py", b"value = 1", b"value = 7")


def file_altered_beside_a_shortened_one(bench: Bench) -> None:
    """The same, and another file of torch lost its end: the one must not hide the other."""
    file_altered_at_equal_size(bench)
    bench.put("torch/nn.py", (bench.site / "torch/nn.py").read_bytes()[:-1])


def file_without_permissions(bench: Bench) -> None:
    """torch's first module may be read by nobody."""
    bench.shut(bench.site / "torch/__init__.py")


def package_without_permissions(bench: Bench) -> None:
    """The folder of torch may be entered by nobody."""
    bench.shut(bench.site / "torch")


def metadata_without_permissions(bench: Bench) -> None:
    """METADATA of torch_npu may be read by nobody."""
    bench.shut(bench.info("torch_npu") / "METADATA")


def site_packages_without_permissions(bench: Bench) -> None:
    """site-packages may be entered by nobody: installed by another user with a strict umask."""
    bench.shut(bench.site)


def site_packages_is_a_file(bench: Bench) -> None:
    """A file lies where site-packages should be."""
    place = bench.site
    shutil.rmtree(place)
    place.write_text("not a folder\n")


def site_packages_link_to_nothing(bench: Bench) -> None:
    """site-packages was moved to a disk that is not mounted."""
    place = bench.site
    shutil.rmtree(place)
    place.symlink_to(bench.prefix / "data" / "site-packages")


def site_packages_of_the_old_python(bench: Bench) -> None:
    """The system's Python moved on to a new version; the packages lie in the folder of the old one."""
    place = bench.site.parent
    place.rename(place.with_name("python3.8"))


def wheel_of_another_python(bench: Bench) -> None:
    """numpy from a wheel for another version of Python, with extensions that this one does not look for."""
    other = "39" if SHORT != "39" else "310"
    files = module("numpy", "1.26.4", first="import numpy._multiarray_umath\n")
    files[f"numpy/_multiarray_umath{SUFFIX.replace(SHORT, other)}"] = library()
    _unpack(bench, Distribution("numpy", "1.26.4", files, tag=f"cp{other}-cp{other}-linux_{platform.machine()}"))


def wheel_for_musl(bench: Bench) -> None:
    """numpy from a wheel for Alpine on a system with glibc."""
    _unpack(bench, numpy(tag=f"cp{SHORT}-cp{SHORT}-musllinux_1_2_{platform.machine()}"))


def wheel_of_another_machine(bench: Bench) -> None:
    """numpy from a wheel for the other architecture, copied over from a build host."""
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    _unpack(bench, numpy(tag=f"cp{SHORT}-cp{SHORT}-manylinux_2_28_{other}"))


def two_owners_by_name(bench: Bench) -> None:
    """A second distribution brings the same files under another name: opencv does so, and torch forks."""
    files = module("torch", "2.7.1", "nn", "optim")
    bench.install(Distribution("torch-cpu", "2.7.1", files))


def editable_whose_folder_is_gone(bench: Bench) -> None:
    """`pip install -e` of a checkout that was moved away: a .pth file points into nothing."""
    _editable(bench, {"__editable__.verl-0.7.0.pth": f"{bench.prefix}/src/verl\n"})


def editable_by_finder_whose_folder_is_gone(bench: Bench) -> None:
    """The same, in the other way of setuptools: a finder that maps the module to a folder."""
    finder = f"MAPPING = {{'verl': '{bench.prefix}/src/verl/verl'}}\ndef install():\n    pass\n"
    line = "import __editable___verl_0_7_0_finder; __editable___verl_0_7_0_finder.install()\n"
    _editable(bench, {"__editable___verl_0_7_0_finder.py": finder, "__editable__.verl-0.7.0.pth": line})


def _editable(bench: Bench, files: dict[str, str | bytes]) -> None:
    bench.install(Distribution("verl", "0.7.0", files))
    origin = f'{{"dir_info": {{"editable": true}}, "url": "file://{bench.prefix}/src/verl"}}'
    bench.put(bench.info("verl") / "direct_url.json", origin)


def _unpack(bench: Bench, wanted: Distribution) -> None:
    """Installs a wheel that fits nothing here, as copying site-packages from elsewhere does."""
    if (bench.site / wanted.name).exists():
        bench.uninstall(wanted.name)
    with zipfile.ZipFile(build(wanted, bench.prefix.parent / "wheels")) as archive:
        archive.extractall(bench.site)


def requirement_of_nobody(bench: Bench) -> None:
    """Requires-Dist lines that no grammar knows, beside one that is not met: metadata of older tools."""
    bench.install(plain("codetiming", "1.4.0"))
    path = bench.info("codetiming") / "METADATA"
    lines = ("torch (>=2,", "numpy ; python_version <", "@@@", "numpy<1.0")
    bench.put(path, path.read_text() + "".join(f"Requires-Dist: {line}\n" for line in lines))
