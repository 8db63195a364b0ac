"""Writes the table of verl's configuration keys: every leaf of the composed ppo_trainer, release by release.

    python tests/contract/make_verl_keys.py FOLDER > npuenv/matrix/keys/verl.toml

FOLDER holds an unpacked wheel for each release (`verl-0.7.1/verl/...`), as `uv pip install --no-deps --target`
leaves it; the Python that runs this needs hydra-core and nothing else. Keys that only another trainer or engine of
the package has come without a default. A row names the releases from which to which it holds, so that a release adds
what differs from the one before.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# All of the package index, oldest first. A pre-release is left out: the name 0.8.0.dev0 is one of many source trees.
RELEASES = (
    *("0.1", "0.2", "0.2.0.post1", "0.2.0.post2", "0.3.0.post0", "0.3.0.post1", "0.4.0", "0.4.1", "0.5.0"),
    *("0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"),
)
CONFIG = Path("verl", "trainer", "config")


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each leaf; an empty mapping is a leaf."""
    if not isinstance(node, dict) or not node:
        yield prefix, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{prefix}.{name}" if prefix else str(name))


def compose(folder: Path, config: str, overrides: list[str]) -> dict[str, Any]:
    """The composed configuration's leaves, interpolations left as they are written."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(folder.resolve()), version_base=None):
        tree = OmegaConf.to_container(hydra_compose(config, overrides=overrides), resolve=False)
    return dict(leaves(tree))


def programs(wheel: Path) -> dict[str, str]:
    """The modules that a user starts, each with the configuration that it takes unless another is named."""
    found = {}
    for file in sorted((wheel / "verl").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "hydra.main(" in text else ():
            for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "hydra.main":
                    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
                    folder = file.parent.relative_to(wheel) / given["config_path"]
                    module = ".".join(file.relative_to(wheel).with_suffix("").parts)
                    found[module] = f"{folder.as_posix()}/{given['config_name']}"
    return found


def configs(wheel: Path) -> list[str]:
    """The configurations and the choices of its groups, by the folder in the package."""
    files = (wheel / "verl").rglob("config/**/*.yaml")
    return sorted(str(each.relative_to(wheel).with_suffix("")) for each in files if not each.name.startswith("_"))


def of_release(wheel: Path) -> tuple[dict[str, Any], set[str]]:
    """The default trainer's leaves, and the names that only another trainer or engine of this release has."""
    base, names = compose(wheel / CONFIG, "ppo_trainer", []), set[str]()
    beside = f"hydra.searchpath=[file://{(wheel / CONFIG).resolve()}]"  # trainers of other folders ask for it by import
    for config in configs(wheel):
        folder, _, name = config.rpartition("/")
        if name.endswith(("ppo_trainer", "ppo_megatron_trainer")):
            names |= set(compose(wheel / folder, name, [beside]))
        elif folder == f"{CONFIG}/model_engine":
            names |= set(compose(wheel / CONFIG, "ppo_trainer", [f"model_engine={name}"]))
    return base, names - set(base)


def spans(values: Mapping[str, str]) -> list[list[str]]:
    """[first release, last release, value] of each run of releases with the same value."""
    runs: list[list[str]] = []
    for at, release in enumerate(RELEASES):
        if release not in values:
            continue
        text = values[release]
        if runs and runs[-1][2] == text and runs[-1][1] == RELEASES[at - 1]:
            runs[-1][1] = release
        else:
            runs.append([release, release, text])
    return runs


def table(wheels: Path) -> str:
    """The whole file."""
    parts: dict[str, dict[str, dict[str, str]]] = {"keys": {}, "more": {}, "programs": {}, "configs": {}}

    def note(part: str, release: str, rows: Iterable[tuple[str, str]]) -> None:
        for key, text in rows:
            parts[part].setdefault(key, {})[release] = text

    for release in RELEASES:
        wheel = wheels / f"verl-{release}"
        base, more = of_release(wheel)
        note("keys", release, ((key, json.dumps(value, sort_keys=True)) for key, value in base.items()))
        note("more", release, ((key, "") for key in more))
        note("programs", release, programs(wheel).items())
        note("configs", release, ((name, "") for name in configs(wheel)))
    lines = [
        "# Every leaf key of verl's ppo_trainer configuration: [first release, last release, default as JSON].",
        "# Written by tests/contract/make_verl_keys.py from the wheels; do not edit. [more]: of other trainers.",
        "# [programs]: modules, each with the configuration it starts from. [configs]: files, choices of groups too.",
        'source = "wheels of verl on the package index: verl/trainer/config, composed"',
        'seen = "2026-11-23"',
        f"releases = {json.dumps(RELEASES)}",
    ]
    for part, rows in parts.items():
        lines += ["", f"[{part}]"]
        for key in sorted(rows):
            runs = [[part for part in run if part] for run in spans(rows[key])]
            lines.append(f"{json.dumps(key)} = {json.dumps(runs)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1])))
