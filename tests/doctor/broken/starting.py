"""Breaks of the interpreter, of what runs when it starts, of the session, and of modules that misbehave on import."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.doctor.broken.bench import other_python, run_uv
from tests.doctor.broken.wheels import build, torch, torch_npu

if TYPE_CHECKING:
    from tests.doctor.broken.bench import Bench


def python_link_to_nothing(bench: Bench) -> None:
    """The Python that the environment was made from was removed."""
    home = bench.prefix / "gone" / "bin"
    config = bench.prefix / "pyvenv.cfg"
    lines = [f"home = {home}" if line.startswith("home") else line for line in config.read_text().splitlines()]
    config.write_text("\n".join(lines) + "\n")
    (bench.prefix / "bin" / "python").unlink()
    (bench.prefix / "bin" / "python").symlink_to(home / "python3")


def python_not_executable(bench: Bench) -> None:
    """The program may not be run: a disk mounted noexec, or modes lost in an archive."""
    _replace_python(bench, "#!/bin/sh\nexit 0\n", 0o644)


def python_is_no_program(bench: Bench) -> None:
    """The program is a file of another machine or of none."""
    _replace_python(bench, b"\x7fELF\2\1\1" + bytes(200), 0o755)


def python_dies_at_once(bench: Bench) -> None:
    """The program is killed as soon as it starts, as by an illegal instruction."""
    _replace_python(bench, "#!/bin/sh\nkill -ILL $$\n", 0o755)


def python_lacks_its_library(bench: Bench) -> None:
    """The loader does not find libpython: exit 127 and a line on stderr."""
    line = "error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file"
    _replace_python(bench, f'#!/bin/sh\necho "$0: {line}" >&2\nexit 127\n', 0o755)


def settings_of_the_environment_gone(bench: Bench) -> None:
    """pyvenv.cfg is gone: the program is the system's Python again and sees no package of the environment."""
    (bench.prefix / "pyvenv.cfg").unlink()


def _replace_python(bench: Bench, content: str | bytes, mode: int) -> None:
    program = bench.prefix / "bin" / "python"
    program.unlink()
    program.write_bytes(content.encode() if isinstance(content, str) else content)
    program.chmod(mode)


def python_too_old(bench: Bench) -> None:
    """An environment of Python 3.8."""
    _of_another_python(bench, "3.8")


def python_without_wheels(bench: Bench) -> None:
    """An environment of Python 3.13, for which this torch_npu was never published."""
    _of_another_python(bench, "3.13")
    bench.uv("install", "--no-deps", "--no-index", "--offline", *_pure(bench, "3.13"))


def python_of_the_last_century(bench: Bench) -> None:
    """Python 2.7 by its path: no program for it can be written that Python 3 also wants."""
    bench.asked = other_python("2.7")


def _of_another_python(bench: Bench, short: str) -> None:
    python = other_python(short)
    shutil.rmtree(bench.prefix)
    run_uv("venv", "--python", str(python), str(bench.prefix))


def _pure(bench: Bench, short: str) -> list[str]:
    tag = f"cp{short.replace('.', '')}-none-any"
    folder = bench.prefix.parent / "wheels"
    return [str(build(replace(each, tag=tag), folder)) for each in (torch(), torch_npu())]


def sitecustomize_raises(bench: Bench) -> None:
    """Whatever it was to set up is not set up; Python says so on stderr and goes on."""
    bench.put("sitecustomize.py", "raise RuntimeError('the profiler is not licensed')\n")


def sitecustomize_ends_the_process(bench: Bench) -> None:
    """Nothing can be asked of such a Python."""
    bench.put("sitecustomize.py", "import os\nos._exit(3)\n")


def sitecustomize_prints(bench: Bench) -> None:
    """A line without an end on stdout, before any answer."""
    bench.put("sitecustomize.py", "import sys\nsys.stdout.write('profiling is on ')\nsys.stdout.flush()\n")


def sitecustomize_prints_without_end(bench: Bench) -> None:
    """Five million characters on stdout, before any answer."""
    bench.put("sitecustomize.py", "import sys\nsys.stdout.write('profiling ' * 500_000)\nsys.stdout.flush()\n")


def pth_raises(bench: Bench) -> None:
    """A .pth file that runs code, which fails."""
    bench.put("hook.pth", "import tracer_that_is_not_installed\n")


def pth_ends_the_process(bench: Bench) -> None:
    """A .pth file that checks a licence and ends whoever has none; others come before and after it."""
    bench.put("aaa.pth", "import os\n")
    bench.put("hook.pth", "import sys; sys.exit(5)\n")
    bench.put("zzz.pth", "import os\n")


def usercustomize_crashes(bench: Bench) -> None:
    """What the user's own folder holds runs in every Python of the user."""
    base = bench.work.parent / "user"
    place = base / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    place.mkdir(parents=True)
    (place / "usercustomize.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    bench.variables["PYTHONUSERBASE"] = str(base)


def pth_never_ends(bench: Bench) -> None:
    """A .pth file that waits for a server: Python does not even start."""
    bench.put("hook.pth", "import time; time.sleep(600)\n")


def pythonpath_before_torch(bench: Bench) -> None:
    """PYTHONPATH names a checkout in which a folder is called torch."""
    folder = bench.work.parent / "checkout"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("__version__ = '0.1'\n")
    bench.variables["PYTHONPATH"] = str(folder)


def folder_named_like_vllm(bench: Bench) -> None:
    """The session stands in the folder that holds a checkout of vllm."""
    (bench.work / "vllm").mkdir()
    (bench.work / "vllm" / "__init__.py").write_text("from vllm._C import nothing\n")


def modules_named_like_the_library(bench: Bench) -> None:
    """random.py and json.py lie in the folder of the session."""
    for name in ("random", "json", "os", "platform", "selectors"):
        (bench.work / f"{name}.py").write_text("raise SystemExit('lottery')\n")


def working_folder_removed(bench: Bench) -> None:
    """The session stands in a folder that another one removed."""
    bench.wrapper = ("sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh")


def path_with_unusual_characters(bench: Bench) -> None:
    """Blanks, a colon and Chinese in the path of an environment that is otherwise fine."""
    moved = bench.prefix.parent / "my env: 环境 é"
    bench.prefix.rename(moved)
    bench.prefix = moved


def torch_hangs(bench: Bench) -> None:
    """Importing torch waits for ever: a network disk that does not answer."""
    _torch_does(bench, "import time\ntime.sleep(600)\n")


def torch_crashes(bench: Bench) -> None:
    """Importing torch is a segmentation fault."""
    _torch_does(bench, "import ctypes\nctypes.string_at(0)\n")


def torch_ends_the_process(bench: Bench) -> None:
    """Importing torch ends the process with code 0, without a word."""
    _torch_does(bench, "import os\nos._exit(0)\n")


def torch_raises_system_exit(bench: Bench) -> None:
    """Importing torch calls sys.exit."""
    _torch_does(bench, "raise SystemExit('no licence for this host')\n")


def torch_raises_keyboard_interrupt(bench: Bench) -> None:
    """Importing torch raises what is no Exception."""
    _torch_does(bench, "raise KeyboardInterrupt('from a signal handler')\n")


def torch_raises_what_cannot_be_printed(bench: Bench) -> None:
    """The error's own text raises."""
    _torch_does(
        bench, "class Odd(Exception):\n    def __str__(self):\n        raise ValueError('no text')\nraise Odd\n"
    )


def torch_recurses(bench: Bench) -> None:
    """Importing torch runs into the limit of recursion."""
    _torch_does(bench, "def again():\n    again()\nagain()\n")


def torch_prints_without_end(bench: Bench) -> None:
    """Importing torch writes five million bytes, most of them no text, and works."""
    bench.is_alone = True
    _torch_does(
        bench, "import os\nfor _ in range(50):\n    os.write(1, b'\\xff\\x00\\xfe\\n' * 25_000)\n", goes_on=True
    )


def torch_closes_stdout(bench: Bench) -> None:
    """Importing torch closes stdout, and works."""
    bench.is_alone = True
    _torch_does(bench, "import os, sys\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n", goes_on=True)


def torch_leaves_a_child(bench: Bench) -> None:
    """Importing torch starts a program that outlives it and keeps stdout open, and works."""
    bench.is_alone = True
    _torch_does(bench, "import subprocess\nsubprocess.Popen(['sleep', '60'])\n", goes_on=True)


def _torch_does(bench: Bench, code: str, *, goes_on: bool = False) -> None:
    old = (bench.site / "torch/__init__.py").read_text()
    made = torch()
    text = code + old if goes_on else code
    bench.install(replace(made, files={**made.files, "torch/__init__.py": text}))


def conda_with_packages_of_the_user(bench: Bench) -> None:
    """A conda environment that finds torch in the user's own folder first."""
    (bench.prefix / "conda-meta").mkdir()
    _into_user_site(bench)


def conda_that_says_another_version(bench: Bench) -> None:
    """pip put another numpy over the one of conda, which still counts on its own."""
    (bench.prefix / "conda-meta").mkdir()
    for name in ("numpy-2.2.6-py311h64a7726_0", "torch-2.8.0+cpu-0", "history"):
        (bench.prefix / "conda-meta" / f"{name}.json").write_text("{}")


def system_with_packages_of_the_user(bench: Bench) -> None:
    """The system's Python with another torch in the user's own folder."""
    _into_user_site(bench)


def _into_user_site(bench: Bench) -> None:
    base = bench.work.parent / "user"
    place = base / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    wheel = build(torch("2.7.1+cpu"), bench.prefix.parent / "wheels")
    run_uv("pip", "install", "--no-deps", "--no-index", "--offline", "--target", str(place), str(wheel))
    bench.variables["PYTHONUSERBASE"] = str(base)
