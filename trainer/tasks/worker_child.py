"""The other side of `trainer.tasks.worker`: loads a function, answers requests until the pipe ends.

What the function prints goes to stderr: stdout belongs to the answers.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import inspect
import json
import math
import os
import pickle
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from trainer.children import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

Value = TypeVar("Value")


def main(file: str, name: str, stacks: int, parts: Sequence[str]) -> None:
    """Serves on stdin and stdout; `stacks` is the descriptor for the stack of a call that hangs.

    `parts` are the names of further numbers in the function's dict.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    end_with_parent(signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1, file=stacks)
    path = Path(file)
    function = _guarded(answers, path, lambda: _load(path, name))
    while function is not None and len(size := requests.read(8)) == 8:
        arguments = pickle.loads(requests.read(int.from_bytes(size, "big")))
        _guarded(answers, path, partial(_score, function, arguments, parts))


def _guarded(answers: IO[bytes], file: Path, act: Callable[[], Value]) -> Value | None:
    """Does it and answers with its numbers, or with its error as a sentence with the innermost line of `file`."""
    value = None
    try:
        value = act()
        answer: dict[str, Any] = {"value": value if isinstance(value, list) else []}
    except (Exception, SystemExit) as error:  # the user's code: whatever it raises is what the answer is for
        reason = " ".join(str(error).split())[:300]
        answer = {"error": f"raised {type(error).__name__}: {reason}{_line(error, file)}"}
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()
    return value


def _line(error: BaseException, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f" at {file.name}:{error.lineno}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" at {file.name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _load(file: Path, name: str) -> Callable[..., Any]:
    sys.path.append(str(file.parent))  # last: a file beside it must not hide a module of the same name
    module = _module(file)
    function = getattr(module, name, None)
    if not callable(function):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise AttributeError(f"no function {name!r} in {file.name}; it has {', '.join(there) or 'none'}")
    made: Callable[..., Any] = function
    return made


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reward_of_the_run", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a class's module up
    spec.loader.exec_module(module)
    return module


def _score(function: Callable[..., Any], arguments: Mapping[str, Any], parts: Sequence[str]) -> list[float]:
    """Calls by verl's keywords; a function that takes none of them gets the prompt's text and the answer."""
    given = {name: arguments[name] for name in ("data_source", "solution_str", "ground_truth", "extra_info")}
    try:
        inspect.signature(function).bind(**given)
    except TypeError:
        value = function(arguments["prompt"], arguments["solution_str"])
    except ValueError:  # a function of C without a signature
        value = function(**given)
    else:
        value = function(**given)
    if inspect.iscoroutine(value):
        import asyncio  # takes as long as all other imports of this process together

        value = asyncio.run(value)
    missing = [name for name in parts if not (isinstance(value, dict) and name in value)]
    if missing:
        raise TypeError(f"the result must be a dict with {missing[0]!r}, one of reward_parts, not {value!r}")
    return [_number(value), *(_number(value[name]) for name in parts)]


def _number(value: Any) -> float:
    """The score as a float; of a dict its `score`, as in verl."""
    score = value["score"] if isinstance(value, dict) and "score" in value else value
    if isinstance(score, str | bytes) or not hasattr(score, "__float__"):
        raise TypeError(f"the score must be a number, or a dict with a number 'score', not {value!r}")
    number = float(score)
    if not math.isfinite(number):
        raise ValueError(f"the score must be finite, not {number}")
    return number
