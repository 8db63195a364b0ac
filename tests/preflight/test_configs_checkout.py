"""Launches that lie in a source tree of verl are judged by the keys of that tree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.app import PreflightOptions, preflight
from npuenv.core.messages import say
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.configs import find_checkout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npuenv.app import PreflightResult

RECORDED = {key: value for key, value in defaults_of("verl", "0.9.1").items() if key != "model_engine"}
CONFIG = "verl/trainer/config"


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        *parts, last = key.split(".")
        inner = tree
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return tree


def checkout(folder: Path, version: str, leaves: Mapping[str, Any], **others: Mapping[str, Any]) -> Path:
    """A tree with one launch script in it, whose path is given back. JSON is YAML."""
    files = {
        "verl/version/version": f"{version}\n",
        f"{CONFIG}/_generated_ppo_trainer.yaml": json.dumps(nested(leaves)),
        f"{CONFIG}/model_engine/dp.yaml": "x: 1\n",
        "examples/run.sh": "python3 -m verl.trainer.main_ppo",
    }
    files |= {f"{CONFIG}/{name}.yaml": json.dumps(nested(keys)) for name, keys in others.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "examples/run.sh"


def judged(script: Path, *words: str, framework: str | None = None) -> PreflightResult:
    script.write_text(
        " ".join(("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm", *words)), encoding="utf-8"
    )
    return preflight([str(script)], PreflightOptions(framework=framework))


def of_keys(result: PreflightResult) -> list[tuple[str, str, object]]:
    return [(p.check, p.severity, p.says.args["key"]) for p in result.problems if p.check.startswith("preflight.key-")]


def test_keys_that_the_tree_lacks_are_errors_and_those_that_it_adds_are_not(tmp_path: Path) -> None:
    script = checkout(tmp_path, "0.10.0.dev", {**RECORDED, "trainer.brand_new": 1})
    result = judged(script, "trainer.brand_new=2", "trainer.total_epohcs=1", "+trainer.nnodes=1")
    assert of_keys(result) == [
        ("preflight.key-unknown", "error", "trainer.total_epohcs"),
        ("preflight.key-exists", "error", "trainer.nnodes"),
    ]
    assert result.launch.release == "0.10.0.dev"
    note = next(p for p in result.problems if p.check == "preflight.release")
    assert note.says.key == "preflight_rules.release-checkout" and note.says.args["path"] == str(tmp_path.resolve())


def test_keys_of_another_engine_are_known_from_its_composed_file_or_the_nearest_release(tmp_path: Path) -> None:
    own = {"_generated_ppo_megatron_trainer": {"critic.of_megatron": 1}, "model_engine/megatron": {"x": 1}}
    leaves = {**RECORDED, "trainer.brand_new": 1}
    script = checkout(tmp_path / "composed", "0.10.0.dev", leaves, **own)
    words = ("critic.of_megatron=2", "critic.megatron.override_ddp_config={}")
    assert [key for _, _, key in of_keys(judged(script, *words))] == ["critic.megatron.override_ddp_config"]
    script = checkout(tmp_path / "not", "0.10.0.dev", leaves, **own, **{"model_engine/mindspeed": {"x": 1}})
    assert of_keys(judged(script, *words)) == []


def test_a_tree_with_the_keys_of_its_release_counts_as_it(tmp_path: Path) -> None:
    launch = judged(checkout(tmp_path, "0.9.1.dev", RECORDED)).launch
    assert (launch.release, launch.release_name, launch.checkout) == ("0.9.1", "0.9.1.dev", None)
    other = judged(checkout(tmp_path / "other", "0.9.1", {**RECORDED, "trainer.brand_new": 1})).launch
    assert other.release == "0.9.1" and other.checkout is not None


def test_a_release_that_the_user_names_is_not_that_of_the_tree(tmp_path: Path) -> None:
    script = checkout(tmp_path, "0.10.0.dev", {**RECORDED, "trainer.brand_new": 1})
    of_release = judged(script, "trainer.brand_new=2", framework="verl==0.9.1")
    assert of_release.launch.checkout is None and [key for _, _, key in of_keys(of_release)] == ["trainer.brand_new"]
    assert of_keys(judged(script, "trainer.brand_new=2", framework="verl==0.10.0.dev")) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("verl/version/version", "of today"), ("verl/version/version", "0.0.1")],
)
def test_a_tree_of_no_known_version_is_none(tmp_path: Path, name: str, text: str) -> None:
    checkout(tmp_path, "0.10.0.dev", {"trainer.brand_new": 1})
    assert find_checkout([tmp_path / "nothing", tmp_path]) is not None
    (tmp_path / "broken").mkdir()
    checkout(tmp_path / "broken", "0.10.0.dev", {"trainer.brand_new": 1})
    (tmp_path / "broken" / name).write_text(text, encoding="utf-8")
    assert find_checkout([tmp_path / "broken"]) is None


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("_generated_ppo_trainer.yaml", "a: 1\nb: [1", "line 2"),
        ("_generated_ppo_x_trainer.yaml", "- a list", ""),
    ],
)
def test_a_damaged_tree_is_said_and_its_release_is_unknown(tmp_path: Path, name: str, text: str, why: str) -> None:
    script = checkout(tmp_path, "0.10.0.dev", {"trainer.brand_new": 1})
    (tmp_path / CONFIG / name).write_text(text, encoding="utf-8")
    result = judged(script)
    assert result.launch.release is None
    (note,) = result.notes
    assert note.key == "preflight.checkout-damaged"
    assert str(tmp_path / CONFIG / name) in say(note) and why in say(note)
    assert "preflight.release" in {each.check for each in result.problems}
    assert judged(script, framework="verl==0.9.1").notes == ()


def test_a_command_is_judged_by_the_tree_that_it_is_started_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path, "0.10.0.dev", {**RECORDED, "trainer.brand_new": 1})
    monkeypatch.chdir(tmp_path)
    words = (
        "python3",
        "-m",
        "verl.trainer.main_ppo",
        "actor_rollout_ref.rollout.name=vllm",
        "trainer.brand_new=2",
        "trainer.brand_nwe=2",
    )
    assert [key for _, _, key in of_keys(preflight(words))] == ["trainer.brand_nwe"]
