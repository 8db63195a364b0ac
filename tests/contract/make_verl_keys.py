"""Writes the table of verl's configuration keys: every leaf of the composed ppo_trainer, release by release.

    python tests/contract/make_verl_keys.py FOLDER > npuenv/matrix/keys/verl.toml

FOLDER holds an unpacked wheel for each release (`verl-0.7.1/verl/...`), as `uv pip install --no-deps --target`
leaves it; the Python that runs this needs hydra-core and nothing else. Keys that only another trainer of the package
has (Megatron and the like) come without a default.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RELEASES = ("0.5.0", "0.6.1", "0.7.1", "0.8.0", "0.9.1")
OTHERS = ("megatron", "veomni", "torchtitan", "automodel", "mindspeed")


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


def of_release(wheel: Path) -> tuple[dict[str, Any], set[str]]:
    """The default trainer's leaves, and the names that only another trainer of this release has."""
    folder = wheel / "verl" / "trainer" / "config"
    base, names = compose(folder, "ppo_trainer", []), set()
    for other in OTHERS:
        if (folder / f"ppo_{other}_trainer.yaml").exists():
            names |= set(compose(folder, f"ppo_{other}_trainer", []))
        elif (folder / "model_engine" / f"{other}.yaml").exists():
            names |= set(compose(folder, "ppo_trainer", [f"model_engine={other}"]))
    return base, names - set(base)


def spans(values: dict[str, Any]) -> list[list[str]]:
    """[first release, last release, value as JSON] of each run of releases with the same value."""
    runs: list[list[str]] = []
    for at, release in enumerate(RELEASES):
        if release not in values:
            continue
        text = json.dumps(values[release], sort_keys=True)
        if runs and runs[-1][2] == text and at > 0 and runs[-1][1] == RELEASES[at - 1]:
            runs[-1][1] = release
        else:
            runs.append([release, release, text])
    return runs


def table(wheels: Path) -> str:
    """The whole file."""
    bases: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, Any]] = {}
    for release in RELEASES:
        base, more = of_release(wheels / f"verl-{release}")
        for key, value in base.items():
            bases.setdefault(key, {})[release] = value
        for key in more:
            others.setdefault(key, {})[release] = ""
    lines = [
        "# Every leaf key of verl's ppo_trainer configuration: [first release, last release, default as JSON].",
        "# Written by tests/contract/make_verl_keys.py from the wheels; do not edit. [more]: of other trainers.",
        'source = "wheels of verl on the package index: verl/trainer/config, composed"',
        'seen = "2026-11-22"',
        f"releases = {json.dumps(RELEASES)}",
        "",
        "[keys]",
    ]
    lines += [f"{json.dumps(key)} = {json.dumps(spans(bases[key]))}" for key in sorted(bases)]
    lines += ["", "[more]"]
    lines += [f"{json.dumps(key)} = {json.dumps([run[:2] for run in spans(others[key])])}" for key in sorted(others)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1])))
