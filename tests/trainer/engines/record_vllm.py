"""Prints the rows of `vllm_signatures.toml` for unpacked sources of vllm and vllm-ascend.

`python -m tests.trainer.engines.record_vllm 2026-11-27 vllm-0.33.0 vllm_ascend-0.30.0rc2`: the day on which they were
read, and folders named as the source distributions are. Nothing of them is imported.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

# What the engine and `trainer.stages.try_package` call, by name: the file, and a class's method or a function; the
# first file that a release has counts.
CALLS = {
    "LLM": (("entrypoints/llm.py", "LLM.__init__"),),
    "LLM.generate": (("entrypoints/llm.py", "LLM.generate"),),
    "LLM.collective_rpc": (("entrypoints/llm.py", "LLM.collective_rpc"),),
    "LLM.apply_model": (("entrypoints/llm.py", "LLM.apply_model"),),
    "LLM.sleep": (("entrypoints/llm.py", "LLM.sleep"),),
    "LLM.wake_up": (("entrypoints/llm.py", "LLM.wake_up"),),
    "LLM.reset_prefix_cache": (("entrypoints/llm.py", "LLM.reset_prefix_cache"),),
    "model.load_weights": (("model_executor/models/qwen2.py", "Qwen2ForCausalLM.load_weights"),),
    "model_runner.reload_weights": (("v1/worker/gpu_model_runner.py", "GPUModelRunner.reload_weights"),),
    "set_current_vllm_config": (
        ("config/vllm.py", "set_current_vllm_config"),
        ("config/__init__.py", "set_current_vllm_config"),
    ),
    "get_model_loader": (("model_executor/model_loader/__init__.py", "get_model_loader"),),
    "model_loader.load_weights": (("model_executor/model_loader/base_loader.py", "BaseModelLoader.load_weights"),),
}
FIELDS = {
    "EngineArgs": ("engine/arg_utils.py",),
    "SamplingParams": ("sampling_params.py",),
    "TokensPrompt": ("inputs/llm.py", "inputs/data.py"),
    "CompletionOutput": ("outputs.py",),
    "Logprob": ("logprobs.py",),
}
# The variables that the engine sets, and where each is declared.
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "vllm",
    "VLLM_WORKER_MULTIPROC_METHOD": "vllm",
    "VLLM_ASCEND_ENABLE_NZ": "vllm_ascend",
}
ARGUMENTS = ("rl_config", "weight_nz_mode")


def parameters(function: ast.FunctionDef) -> list[str]:
    """As in a signature without annotations; `name=` has a default. Example: ["prompts", "*", "use_tqdm="]"""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    first = len(names) - len(given.defaults)
    found = [name + "=" * (number >= first) for number, name in enumerate(names)]
    if given.vararg or given.kwonlyargs:
        found.append(f"*{given.vararg.arg if given.vararg else ''}")
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    found += [each.arg + "=" * (default is not None) for each, default in pairs]
    found += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return found[1:] if names[:1] == ["self"] else found


def body_of(path: Path, name: str = "") -> list[ast.stmt]:
    """The statements of a file, or of a class in it; none if there is no such one."""
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    if not name:
        return body
    return next((each.body for each in body if isinstance(each, ast.ClassDef) and each.name == name), [])


def call(path: Path, name: str) -> list[str] | None:
    """The parameters of `function` or `Class.method` of a file; None if it has no such one."""
    owner, _, own = name.rpartition(".")
    body = body_of(path, owner)
    return next((parameters(each) for each in body if isinstance(each, ast.FunctionDef) and each.name == own), None)


def field_names(path: Path, name: str) -> list[str]:
    return [
        each.target.id
        for each in body_of(path, name)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not each.target.id.startswith("_")
    ]


def attributes(path: Path, name: str) -> list[str]:
    """What the constructor of a class sets."""
    made = next(each for each in body_of(path, name) if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    return re.findall(r"self\.(\w+) = ", ast.unparse(made))


def vllm_rows(package: Path) -> dict[str, Any]:
    """What `[[vllm]]` says of a release."""
    calls: dict[str, list[str] | None] = {}
    for name, places in CALLS.items():
        path, owned = next(place for place in places if call(package / place[0], place[1]) is not None)
        calls[name] = call(package / path, owned)
    files = {name: next(each for each in paths if (package / each).exists()) for name, paths in FIELDS.items()}
    reasons = re.search(r"FINISH_REASON_STRINGS = (\(.*?\))", (package / "v1/engine/__init__.py").read_text("utf-8"))
    modes = re.search(r"LogprobsMode = Literal\[(.*?)\]", (package / "config/model.py").read_text("utf-8"), re.DOTALL)
    assert reasons is not None and modes is not None
    return {
        "variables": declared(package, "vllm"),
        "finish_reasons": list(ast.literal_eval(reasons[1])),
        "logprobs_modes": re.findall(r'"(\w+)"', modes[1]),
        "sampler": attributes(package / "v1/sample/sampler.py", "Sampler"),
        "calls": calls,
        "fields": {name: field_names(package / path, name) for name, path in files.items()},
    }


def ascend_rows(package: Path) -> dict[str, Any]:
    """What `[[vllm_ascend]]` says of a release."""
    config = (package / "ascend_config.py").read_text(encoding="utf-8")
    worker = next(path for name in ("worker.py", "worker_v1.py") if (path := package / "worker" / name).exists())
    calls = {name: call(worker, f"NPUWorker.{name}") for name in ("sleep", "wake_up", "get_model")}
    runner = (package / "worker" / "model_runner_v1.py").read_text(encoding="utf-8")
    return {
        "variables": declared(package, "vllm_ascend"),
        "additional_config": [name for name in ARGUMENTS if f'"{name}"' in config or f"    {name}: " in config],
        "rejects_unknown": 'model_config = ConfigDict(extra="forbid")' in config,
        "ignores_logprobs_mode": "self.sampler = AscendSampler()" in runner,
        "sampler": attributes(package / "sample" / "sampler.py", "AscendSampler"),
        "calls": calls,
    }


def declared(package: Path, name: str) -> list[str]:
    text = (package / "envs.py").read_text(encoding="utf-8")
    return [each for each, owner in VARIABLES.items() if owner == name and f'"{each}"' in text]


def written(head: str, rows: dict[str, Any]) -> str:
    tables = {name: each for name, each in rows.items() if isinstance(each, dict)}
    lines = [f"[[{head}]]", *(f"{name} = {json.dumps(each)}" for name, each in rows.items() if name not in tables)]
    for name, table in tables.items():
        lines += [f"[{head}.{name}]", *(f"{json.dumps(key)} = {array(each)}" for key, each in table.items())]
    return "\n".join(lines)


def array(names: list[str]) -> str:
    """In one line if it fits, else in as few as fit."""
    line = json.dumps(names)
    if len(line) < 90:
        return line
    lines = [""]
    for name in names:
        item = f"{json.dumps(name)}, "
        if len(lines[-1]) + len(item) > 116:
            lines.append("")
        lines[-1] += item
    return "\n".join(["[", *(f"  {each.rstrip()}" for each in lines), "]"])


def main(seen: str, *folders: str) -> None:
    for folder in map(Path, folders):
        package, _, version = folder.name.partition("-")
        rows = vllm_rows(folder / package) if package == "vllm" else ascend_rows(folder / package)
        head = {"version": version, "source": f"sdist of {package.replace('_', '-')} {version}", "seen": seen}
        print(written(package, head | rows), end="\n\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
