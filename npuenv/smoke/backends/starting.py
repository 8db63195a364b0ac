"""Starts a framework's smoke test: `look` finds the framework and the cards in the target, or reports what is missing;
`prepare` renders its smallest GRPO run, `start` starts it.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import JsonError, parse_json
from npuenv.core.errors import BadInput, CannotTell, StepFailed
from npuenv.core.messages import Message
from npuenv.host.background import Running
from npuenv.matrix import load_matrix
from npuenv.render.launch.generate import launch
from npuenv.render.launch.job import LaunchOptions
from npuenv.resolve import resolve
from npuenv.resolve.types import Request
from npuenv.resolve.types import Stack as Resolved
from npuenv.smoke.run import LOG, METRICS, NEVER_INHERITED, make_scene

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host import Host
    from npuenv.resolve.types import Stack
    from npuenv.smoke.run import TrainerTarget


# Importing acl loads CANN, seconds on a cold disk.
_LOOK_S, _WRITE_S = 120.0, 120.0
# Entries of a ROLL tree that an installed package of the same name lacks.
ROLL_PROGRAM = "examples/start_agentic_pipeline.py"


@dataclass(frozen=True, slots=True)
class InstalledFramework:
    """An installed framework."""

    framework: str  # verl | roll
    release: str  # the release that launch files are rendered for
    cards: int  # the number that Ray will detect
    tree: str = ""  # ROLL's source tree; empty for verl


def program() -> str:
    """The text of the program that runs in the target."""
    return Path(__file__).with_name("target_program.py").read_text(encoding="utf-8")


def look(host: Host, python: Path, framework: str) -> InstalledFramework:
    """The framework in the target with the cards that it can use.

    Raises: BadInput if it is not installed or cannot be inspected, CannotTell if no card is visible.
    """
    if not python.is_file():
        raise BadInput(Message("smoke.no-python", {"path": str(python)}), Message("smoke.no-python-hint"))
    answer = _query(host, python, framework)
    args: dict[str, object] = {"backend": framework, "python": str(python)}
    tree = _tree(host, answer) if framework == "roll" else ""
    if not (tree if framework == "roll" else answer["version"] and answer["place"]):
        hint = Message(f"smoke.backend-absent-{framework}")
        raise BadInput(Message("smoke.backend-absent", args), hint)
    if framework == "verl" and not answer["has_pyarrow"]:
        raise BadInput(Message("smoke.backend-no-pyarrow", args), Message("smoke.backend-absent-verl"))
    if not answer["cards"]:
        raise CannotTell(Message("smoke.backend-no-cards", args), Message("smoke.backend-no-cards-hint"))
    # A ROLL tree that is not installed has no metadata: the newest format then.
    release = str(answer["version"]).partition("+")[0] or ("main" if framework == "roll" else "")
    return InstalledFramework(framework, release, int(answer["cards"]), tree)


def _query(host: Host, python: Path, framework: str) -> dict[str, Any]:
    ran = host.run([str(python), "-c", program(), "look", framework], timeout_s=_LOOK_S)
    last = ran.out.strip().rpartition("\n")[2]
    try:
        answer = parse_json(last)
    except JsonError:
        answer = None
    if ran.code != 0 or not isinstance(answer, dict):
        reason = (ran.err.strip() or last or str(ran.code)).rpartition("\n")[2]
        args = {"path": str(python), "reason": reason}
        raise BadInput(Message("smoke.bad-python", args), Message("smoke.no-python-hint"))
    return answer


def _tree(host: Host, answer: dict[str, Any]) -> str:
    """ROLL's source tree: ROLL_ROOT, else the location of the target's `roll`; "" if there is none."""
    named = host.environ().get("ROLL_ROOT", "")
    for tree in (named, str(Path(answer["place"]).parent) if answer["place"] else ""):
        if tree and (Path(tree) / ROLL_PROGRAM).is_file():
            return tree
    return ""


def write_rows(host: Host, python: Path, files: Mapping[Path, list[dict[str, Any]]]) -> None:
    """Writes rows as parquet files with the target's pyarrow. Raises: StepFailed if that fails."""
    words = []
    for location, rows in files.items():
        source = location.with_suffix(".json")
        source.write_text(json.dumps(rows), encoding="utf-8")
        words += [str(source), str(location)]
    ran = host.run([str(python), "-c", program(), "write", *words], timeout_s=_WRITE_S)
    missing = next((location for location in files if not location.is_file()), None)
    if ran.code != 0 or missing is not None:
        reason = (ran.err.strip() or str(ran.code)).rpartition("\n")[2]
        args = {"path": str(missing or next(iter(files))), "reason": reason}
        raise StepFailed(Message("smoke.backend-no-data", args), Message("smoke.backend-no-data-hint"))


# The score function of this data source reads the number after four hashes; other names have none.
_SOURCE = "openai/gsm8k"
_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_THINGS = ("screws", "cables", "trays", "labels", "filters", "valves", "lamps", "tiles")
_PLACES = ("a depot", "a workshop", "a lab", "a kiosk")


def problem(number: int) -> tuple[str, str, str]:
    """Question, worked solution and result of the problem with that number.

    Example: 0 -> ("A depot holds 3 boxes of 2 screws ...", "... #### 5", "5")
    """
    thing, place = _THINGS[number % len(_THINGS)], _PLACES[number // 2 % len(_PLACES)]
    boxes, each = 3 + number % 4, 2 + number % 5
    used = 1 + number % 3
    left = boxes * each - used
    question = (
        f"{place.capitalize()} holds {boxes} boxes of {each} {thing} each. {used} of them are used. How many are left?"
    )
    return question, f"{boxes} * {each} = {boxes * each}\n{boxes * each} - {used} = {left}\n#### {left}", str(left)


def rows(split: str, first: int, count: int) -> list[dict[str, Any]]:
    """`count` rows from problem `first` on. Every number is text: an integer as ground truth silently scores 0.

    Source: verl examples/data_preprocess/gsm8k.py @v0.7.1: columns and their order.
    """
    return [
        {
            "data_source": _SOURCE,
            "prompt": [{"role": "user", "content": f"{question} {_INSTRUCTION}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": result},
            "extra_info": {"split": split, "index": at, "answer": solution, "question": question},
        }
        for at, (question, solution, result) in enumerate(map(problem, range(first, first + count)))
    ]


# Settings of this command; every other one is a key of the framework.
_NUMBERS = {"steps": 3, "cards": 0, "silence_limit_s": 900, "pending_limit_s": 60}
_MOST_CARDS = 2  # enough for a collective; with fewer than two only one card is used
_ANSWERS, _PROMPTS = 4, 8
# Folder of the log files of ROLL's processes, below the run's data.
DRIVER_LOGS = "logs"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run. `overrides` are the framework's own keys."""

    steps: int
    cards: int  # 0: as many as needed
    silence_limit_s: float
    pending_limit_s: float
    model: str | None = None  # a folder or a name; None: the recipe's
    overrides: Mapping[str, str] = field(default_factory=dict)


def asked(settings: Mapping[str, str], model: str | None) -> RunOptions:
    """The settings of the command line. Raises: BadInput for invalid numbers."""
    numbers = {name: _number(name, settings.get(name, str(value))) for name, value in _NUMBERS.items()}
    rest = {key: value for key, value in settings.items() if key not in _NUMBERS}
    numbers["steps"] = max(numbers["steps"], 1)
    return RunOptions(**numbers, model=model, overrides=rest)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadInput(Message("smoke.backend-bad-number", {"name": name, "value": text}))
    return int(text)


def used_cards(found: InstalledFramework, asked: RunOptions) -> int:
    """The number of cards for the run. Raises: BadInput if it exceeds those present."""
    if asked.cards > found.cards:
        args = {"cards": asked.cards, "seen": found.cards}
        raise BadInput(Message("smoke.backend-too-few", args), Message("smoke.backend-too-few-hint"))
    return asked.cards or min(found.cards, _MOST_CARDS)


def smallest(framework: str, asked: RunOptions, *, cards: int, data: Path) -> dict[str, str]:
    """The smallest run as the framework's keys, with the user's own on top."""
    values = _smallest_verl(asked.steps, data) if framework == "verl" else _smallest_roll(asked.steps, cards, data)
    return {**values, **asked.overrides}


def _smallest_verl(steps: int, data: Path) -> dict[str, str]:
    actor, rollout, reference = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    return {
        "data.train_files": str(data / "train.parquet"),
        "data.val_files": str(data / "test.parquet"),
        "data.train_batch_size": str(_PROMPTS),
        "data.max_prompt_length": "256",
        "data.max_response_length": "128",
        f"{actor}.ppo_mini_batch_size": str(_PROMPTS),
        f"{actor}.ppo_micro_batch_size_per_gpu": "2",
        f"{rollout}.n": str(_ANSWERS),
        f"{rollout}.tensor_model_parallel_size": "1",
        f"{rollout}.gpu_memory_utilization": "0.4",
        f"{rollout}.log_prob_micro_batch_size_per_gpu": "2",
        f"{reference}.log_prob_micro_batch_size_per_gpu": "2",
        "trainer.total_training_steps": str(steps),
        # One epoch holds all steps: the data have rows for that many.
        "trainer.total_epochs": "1",
        "trainer.val_before_train": "True",
        "trainer.test_freq": str(steps),
        "trainer.save_freq": "-1",
        "trainer.logger": "console",
    }


def _smallest_roll(steps: int, cards: int, data: Path) -> dict[str, str]:
    batch = _ANSWERS * _PROMPTS
    micro = 2
    return {
        # ROLL's default is beside its own tree.
        "logging_dir": str(data / DRIVER_LOGS),
        "output_dir": str(data / "output"),
        "render_save_dir": str(data / "render"),
        "checkpoint_config.output_dir": str(data / "checkpoints"),
        "max_steps": str(steps),
        "eval_steps": "1",
        "rollout_batch_size": str(batch),
        "val_batch_size": str(_PROMPTS),
        "sequence_length": "2048",
        "actor_train.training_args.per_device_train_batch_size": str(micro),
        "actor_train.training_args.gradient_accumulation_steps": str(max(batch // (micro * max(cards, 1)), 1)),
        "train_env_manager.num_env_groups": str(_PROMPTS),
        "train_env_manager.group_size": str(_ANSWERS),
        "train_env_manager.num_groups_partition": f"[{_PROMPTS}]",
        "val_env_manager.num_env_groups": str(_PROMPTS),
        "val_env_manager.tags": "[FrozenLake]",
        "val_env_manager.num_groups_partition": f"[{_PROMPTS}]",
    }


def prepare(
    host: Host, target: TrainerTarget, found: InstalledFramework, asked: RunOptions, *, lang: str = "en"
) -> Path:
    """Writes data and launch files below the output folder; the start script.

    Raises: BadInput for settings that the framework does not know or that do not fit together.
    """
    scene = make_scene(target.out)
    folder, data = scene / "launch", scene / "data"
    # The logs of an earlier run would be read as this run's.
    shutil.rmtree(data, ignore_errors=True)
    for each in (folder, data):
        each.mkdir(parents=True, exist_ok=True)
    if found.framework == "verl":
        train, test = rows("train", 0, _PROMPTS * asked.steps), rows("test", 1000, _PROMPTS)
        write_rows(host, target.python, {data / "train.parquet": train, data / "test.parquet": test})
    cards = used_cards(found, asked)
    wanted = LaunchOptions(
        release=found.release,
        model=asked.model,
        cards_per_node=cards,
        overrides=smallest(found.framework, asked, cards=cards, data=data),
    )
    for name, text in launch(wanted, _stack(found), lang=lang).files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "run.sh"


def _stack(found: InstalledFramework) -> Stack:
    """The stack whose settings fit the release: its own if one is published, else the newest."""
    matrix = load_matrix()
    known = {row.release for row in matrix.recipes if row.framework == found.framework}
    release = found.release if found.release in known else None
    result = resolve(Request(framework=found.framework, release=release), matrix)
    if not isinstance(result, Resolved):
        args = {"backend": found.framework, "release": found.release}
        raise BadInput(Message("smoke.backend-no-stack", args), Message("smoke.backend-no-stack-hint"))
    return result


def start(target: TrainerTarget, found: InstalledFramework, script: Path, *, ray_folder: Path) -> Running:
    """Starts the rendered script with the target's Python first on PATH, in its own Ray.

    Ray records its latest cluster in its folder. In a folder of its own the run finds none to join, and its processes
    find its cluster, which RAY_ADDRESS=local would prevent. The path must be short: it holds sockets, whose paths are
    limited to 107 characters. An existing cluster is not this run's, and must not end with it.
    """
    path = os.pathsep.join((str(target.python.parent), os.environ.get("PATH", os.defpath)))
    env = {"PATH": path, "PYTHONUNBUFFERED": "1", "RAY_TMPDIR": str(ray_folder), "HYDRA_FULL_ERROR": "1"}
    if found.tree:
        env["ROLL_ROOT"] = found.tree
    for old in (METRICS, LOG):
        (target.out / old).unlink(missing_ok=True)
    work, unset = target.out / "scene" / "work", (*NEVER_INHERITED, "RAY_ADDRESS")
    return Running(["sh", str(script)], cwd=work, env=env, log=target.out / LOG, unset=unset)
