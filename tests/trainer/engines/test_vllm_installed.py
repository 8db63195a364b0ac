"""The engine on installed vllms, built for no device: all is vLLM's own but the part that needs compiled kernels.

`vllm_child.py` runs in each version's environment; an argument, attribute or method that the version lacks stops it.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.engines.record_vllm import ascend_rows, vllm_rows
from tests.trainer.engines.vllm_signatures import VLLM, VLLM_ASCEND
from trainer.tasks.tokenizers import Characters

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.registry, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
END = Characters().end
NEWEST = "0.23.0"
# Version: what else its dependencies must be held to, or are short of in an empty build.
VERSIONS = {"0.11.0": ("transformers<5", "numba"), "0.18.0": (), NEWEST: ()}
NEWEST_ASCEND = "0.30.0rc2"
ASCEND = ("0.11.0", "0.18.0", "0.23.0", "0.26.0rc1", NEWEST_ASCEND)
TOOLS = ("setuptools==79.*", "setuptools-scm", "setuptools-rust", "wheel", "packaging", "ninja", "cmake", "jinja2")
OUT_OF_REACH = re.compile(
    r"error sending request|failed to fetch|client error|timed out|dns error|network (?:was|is|connectivity is) "
    r"disabled|no versions? of torch==",
    re.IGNORECASE,
)


def uv(*words: str, **environment: str) -> None:
    import uv as package

    command, variables = [package.find_uv_bin(), *words], os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        command, env=variables | environment, capture_output=True, text=True, timeout=560, check=False
    )
    if done.returncode and OUT_OF_REACH.search(done.stderr):
        pytest.skip(f"cannot be had here: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr


def find_links() -> list[str]:
    """Where pip is told to look besides its index; uv does not read pip's settings."""
    ran = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    lines = [line.partition("=")[2].strip("'\" ") for line in ran.stdout.splitlines() if ".find-links=" in line]
    places = [*" ".join(lines).replace("\\n", " ").split(), *os.environ.get("PIP_FIND_LINKS", "").split()]
    return [word for place in dict.fromkeys(places) for word in ("--find-links", place)]


def environment(folder: Path, version: str) -> Path:
    """The interpreter of an environment with vllm built for no device, all that it needs, and torch for the CPU."""
    python = folder / "env" / "bin" / "python"
    limits, left_out = folder / "limits.txt", folder / "left_out.txt"
    limits.write_text(f"torch=={torch.__version__}\n", encoding="utf-8")
    left_out.write_text("triton\n", encoding="utf-8")
    install = ("pip", "install", "--python", str(python))
    held = (*find_links(), "--constraints", str(limits), "--excludes", str(left_out))
    uv("venv", "--python", sys.executable, str(folder / "env"))
    uv(*install, *held, f"torch=={torch.__version__}", "numpy", *TOOLS)
    # Without the cache: it does not tell an empty build from another one of the same version.
    empty = ("--no-cache", "--no-deps", "--no-build-isolation", "--no-binary", "vllm", f"vllm=={version}")
    uv(*install, *empty, VLLM_TARGET_DEVICE="empty")
    uv(*install, *held, f"vllm=={version}", *VERSIONS[version])
    return python


def ran(folder: Path, version: str) -> dict[str, Any] | str:
    """What the child saw, or its error."""
    folder.mkdir()
    python, path = environment(folder, version), folder / "seen.json"
    (package,) = python.parents[1].glob("lib/python*/site-packages/vllm")
    rows = vllm_rows(package)
    child = [str(python), str(Path(__file__).with_name("vllm_child.py")), str(folder), str(path)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTEST_"))}
    variables |= {"PYTHONPATH": str(ROOT), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(child, env=variables, capture_output=True, text=True, timeout=560, check=False)
    shutil.rmtree(folder / "env")  # gigabytes, which pytest would keep for three runs
    if done.returncode:
        return done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return seen | {"rows": rows}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any] | str]:
    """What was seen in a version, which is installed when it is first asked for."""
    if "+cpu" not in torch.__version__:
        pytest.skip(f"torch {torch.__version__} is no build for the CPU, and another is not to be downloaded for this")
    folder = tmp_path_factory.mktemp("vllm")
    return functools.cache(lambda version: ran(folder / version, version))


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.long) for each in VERSIONS])
def seen(request: pytest.FixtureRequest, every: Callable[[str], dict[str, Any] | str]) -> dict[str, Any]:
    found = every(request.param)
    assert not isinstance(found, str), found
    assert found["versions"] == {"vllm": f"{request.param}+empty", "torch": torch.__version__}
    return found


def test_vllms_own_outputs_become_answers_with_the_drawn_tokens_logprobs(seen: dict[str, Any]) -> None:
    groups = seen["generating"]["groups"]
    assert [len(group) for group in groups] == [4, 4, 4]
    answers = [answer for group in groups for answer in group]
    for tokens, logprobs, stop in answers:
        assert logprobs == pytest.approx([-token / 10 for token in tokens])
        assert END not in tokens[:-1]
        assert stop == ("END" if tokens[-1] == END else "LENGTH")
        assert stop == "END" or len(tokens) == 3
    assert {stop for _, _, stop in answers} == {"END", "LENGTH"}
    assert seen["generating"]["greedy"] == [1, 1]


def test_vllm_understands_the_requests_as_they_were_meant(seen: dict[str, Any]) -> None:
    generating = seen["generating"]
    assert generating["prompts"] == [[1, 2], [3], [4, 4]]
    assert generating["seeds"] == 13  # 3 x 4 drawn, 1 greedy: vLLM gives each answer of a prompt its own
    meant = {
        "n": 1,  # a request for several answers is several requests by then
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 3,
        "logprobs": 0,
        "ignore_eos": True,
        "detokenize": False,
        "stops": [END],
    }
    assert generating["params"] == [meant, meant | {"temperature": 0.0}]


def test_vllms_configuration_is_what_the_arguments_say(seen: dict[str, Any]) -> None:
    assert seen["generating"]["config"] == {
        "logprobs_mode": "processed_logprobs",
        "max_model_len": 23,
        "enforce_eager": True,
        "seed": 3,
        "generation_config": "vllm",
        "memory": 0.6,
    }
    assert seen["generating"]["is_elsewhere"] is False  # in this process, where weights go over by reference
    assert seen["transport"] == {
        "sent": ["load", "read", "reload", "process_logprobs"],
        "args": [2, True, 0.3],
        "backend": "mp",
    }


def test_the_recorded_signatures_are_those_of_the_release(seen: dict[str, Any]) -> None:
    rows = seen["rows"]
    recorded = {f"{row['version']}+empty": {name: row[name] for name in rows} for row in VLLM}
    assert recorded.get(seen["versions"]["vllm"], rows) == rows


@pytest.mark.parametrize("way", ["in_place", "in_place_qwen3", "reload"])
def test_vllms_own_model_holds_the_weights_that_it_was_given_also_after_a_sleep(seen: dict[str, Any], way: str) -> None:
    assert len(seen[way]["names"]) == (25 if way == "in_place_qwen3" else 27)
    hold(seen[way])


@pytest.mark.long
def test_a_runner_that_cannot_reload_is_reloaded_by_vllms_loader(every: Callable[[str], dict[str, Any] | str]) -> None:
    """As vllm-ascend's of that version is."""
    found = every("0.11.0")
    assert not isinstance(found, str), found
    assert len(found["reload_plain"]["names"]) == 27
    hold(found["reload_plain"])


def hold(found: dict[str, Any]) -> None:
    """Asserts that weights came over, were lost in a sleep, and came over again before the cache woke."""
    assert found["received"] == found["names"]
    assert found["lost"] == found["names"]
    assert found["after"] == found["names"]
    assert found["whole"]
    calls = [each for each in found["calls"] if each[0] != "reset_prefix_cache"]
    assert calls == [["sleep", 2], ["wake_up", ["weights"]], ["wake_up", ["kv_cache"]]]
    assert found["calls"][-1] == ["reset_prefix_cache", None]
    assert not found["is_sleeping"]


@pytest.mark.parametrize(
    "version", [*(pytest.param(each, marks=pytest.mark.long) for each in ASCEND[:-1]), NEWEST_ASCEND]
)
def test_vllm_ascends_worker_has_what_is_used_of_it(tmp_path: Path, version: str) -> None:
    """From its sources: to import it takes torch_npu and CANN."""
    tools, folder = tmp_path / "tools", tmp_path / "sources"
    python = str(tools / "bin" / "python")
    uv("venv", "--python", sys.executable, str(tools))
    uv("pip", "install", "--python", python, *find_links(), f"torch=={torch.__version__}", "numpy", *TOOLS)
    sources = ("--no-cache", "--no-deps", "--no-build-isolation", "--no-binary", "vllm-ascend", "--target", str(folder))
    install = ("pip", "install", "--python", python, *sources, f"vllm-ascend=={version}")
    uv(*install, COMPILE_CUSTOM_KERNELS="0", SOC_VERSION="ascend910b1")
    package = folder / "vllm_ascend"
    file = "worker_v1.py" if version == "0.11.0" else "worker.py"
    worker, methods = class_of(package / "worker" / file, "NPUWorker")
    assert [ast.unparse(base) for base in worker.bases] == ["WorkerBase"]
    assert methods["sleep"] == ["self", "level"]
    assert methods["wake_up"] == ["self", "tags"]
    assert methods["get_model"] == ["self"]
    assert "self.model_runner = NPUModelRunner(" in ast.unparse(worker)
    runner, methods = class_of(package / "worker" / "model_runner_v1.py", "NPUModelRunner")
    bases = [ast.unparse(base) for base in runner.bases]
    assert methods["get_model"] == ["self"] or bases == ["GPUModelRunner"]
    # Hence both ways of reloading: the oldest runner is not vLLM's, and has no way of its own.
    assert ("GPUModelRunner" in bases) == (version != "0.11.0")
    assert "reload_weights" not in methods
    # Weights in the NZ layout are switched off by the variable, by the argument, or by both.
    rows = ascend_rows(package)
    assert rows["variables"] or "weight_nz_mode" in rows["additional_config"]
    assert rows["ignores_logprobs_mode"]
    recorded = {row["version"]: {name: row[name] for name in rows} for row in VLLM_ASCEND}
    assert recorded.get(version, rows) == rows


def class_of(path: Path, name: str) -> tuple[ast.ClassDef, dict[str, list[str]]]:
    """A class of a source file, and the parameters of each of its methods."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name]
    methods = [each for each in found.body if isinstance(each, ast.FunctionDef)]
    return found, {each.name: [argument.arg for argument in each.args.args] for each in methods}
