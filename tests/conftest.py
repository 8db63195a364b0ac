"""What all tests share: the installed CPU environment, and homes of their own."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.install.environments import default_environment

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# Of the shell that starts the tests: a language, colours, a width. A test that means one of these sets it itself.
for _name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
    os.environ.pop(_name, None)
os.environ["LANG"] = "C.UTF-8"
# Where nothing compiled is kept, each process that a test starts compiles all of npuenv anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    # The same examples on every run, so that none fails by chance; `--hypothesis-profile=default` draws new ones.
    # A machine that is busy draws slowly, which says nothing about the product.
    too_slow = [hypothesis.HealthCheck.too_slow]
    repeated = hypothesis.settings(max_examples=30, derandomize=True, suppress_health_check=too_slow)
    hypothesis.settings.register_profile("repeated", repeated)
    hypothesis.settings.register_profile("quick", repeated, max_examples=15)  # of `.ci/quick`
    hypothesis.settings.load_profile("repeated")

# Taken before any test changes the environment: where `npuenv install cpu` puts its environment.
CPU_ENVIRONMENT = default_environment("cpu")


def lend_torch() -> None:
    """Lends the tests torch from the installed CPU stack where their own interpreter has none.

    npuenv itself has no torch among its requirements: a bare one would be a CUDA download. The environment's packages
    come last on the path, and only for the same version of Python.
    """
    packages = CPU_ENVIRONMENT / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if importlib.util.find_spec("torch") is None and packages.is_dir():
        sys.path.append(str(packages))


# At once: a conftest further down asks for torch when it is loaded, which is before any hook where it is named itself.
lend_torch()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: more workers than cores, because many tests wait for processes.

    Each of them collects all tests and loads torch, about 15 s of a core.
    """
    return 3 * len(os.sched_getaffinity(0)) // 2


def compile_a_part(folder: Path) -> None:
    """Imports the test modules, each worker from another place on: what one has compiled, the others only load.

    Without this, all of them compile the same module at the same time, in a fresh checkout 15 s of a core each.
    """
    files = sorted(folder.rglob("test_*.py"))
    worker, count = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    first = len(files) * worker // count
    for file in files[first:] + files[:first]:
        # Collecting the module says so again.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.with_suffix("").relative_to(folder.parent).parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What collecting makes stays for the whole run: looking through it for garbage would cost seconds.

    Tests leave little garbage in circles, so that looking for it seldom is enough.
    """
    gc.disable()
    if "PYTEST_XDIST_WORKER" in os.environ and session.config.args == ["tests"]:
        compile_a_part(Path(__file__).parent)
    result = yield
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `one_in(n)`, all examples but every n-th are slow; of one that is slow itself they are long."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            if seen[name] % mark.args[0]:
                is_slow = any(item.iter_markers("slow")) or any(item.iter_markers("registry"))
                item.add_marker(pytest.mark.long if is_slow else pytest.mark.slow)
            seen[name] += 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the golden files of tests/golden anew")


@pytest.fixture(scope="session")
def cpu_environment() -> Path:
    """The folder of the installed CPU stack; skips where there is none."""
    if not (CPU_ENVIRONMENT / "bin" / "python").exists():
        pytest.skip("the CPU stack is not installed: npuenv install cpu --yes")
    return CPU_ENVIRONMENT


@pytest.fixture(scope="session")
def _pythons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What uv knows of the Pythons of this machine."""
    return tmp_path_factory.mktemp("pythons")


@pytest.fixture
def fresh_uv_cache(tmp_path: Path, _pythons: Path) -> Iterator[Path]:
    """A cache of uv that holds no package, only what it knows of Pythons: to ask one costs 0.1 s of a core."""
    cache = tmp_path / "cache"
    shutil.copytree(_pythons, cache)
    yield cache
    for known in cache.glob("interpreter-v*"):
        shutil.copytree(known, _pythons / known.name, dirs_exist_ok=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, with nothing configured for pip, uv, a proxy or a language."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in list(os.environ):
        if (
            name.startswith(("PIP_", "UV_", "LC_"))
            or name.lower().endswith("_proxy")
            or name in ("NO_COLOR", "COLUMNS")
        ):
            monkeypatch.delenv(name)
    for name, value in {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "PIP_CONFIG_FILE": os.devnull,
        "LANG": "C",
    }.items():
        monkeypatch.setenv(name, value)
    return folder
