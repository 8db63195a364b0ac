"""Runs a function in its own process, so that one that hangs, uses up memory or crashes is stopped and reported.

An alarm in this process would not suffice: a signal waits until the interpreter is back from C code, and a product of
huge numbers or a stuck library call never comes back. One process serves all calls: starting one takes 50 ms, a call
0.1. It protects against mistakes, not against hostile code, for which see `trainer.tasks.code`.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import inspect
import json
import math
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from trainer.launch import end_with_parent, exit_code, wait_for_child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

_ROOT = Path(__file__).resolve().parents[2]
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from trainer.tasks.worker import serve; "
    "serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])"
)
_START_S = 120.0  # a file may import much
_ASK_S = 0.1  # between two questions where a process is
_PLACE_S = 5.0  # for the answer to the signal: on a busy machine the process may have to wait first
_MOST_STACK = 1 << 20


class WorkerError(RuntimeError):
    """The function could not be loaded, raised, or its process died."""


class WorkerTimeout(RuntimeError):
    """The function did not answer in time; its process is gone, the next call starts another."""


class Worker:
    """A function `name` of a Python file, called in another process.

    Invariant: between calls the process waits for a request or there is none. Keyword arguments travel by pickle, a
    number comes back; of a dict its `score`, and its values of `parts`. The process ends with this one.
    """

    def __init__(self, file: Path, name: str, parts: Sequence[str] = ()) -> None:
        self._file, self._name, self._parts = file, name, parts
        self._process: subprocess.Popen[bytes] | None = None
        self._stacks: IO[bytes] | None = None
        self._stop: weakref.finalize[Any, Any] | None = None

    def start(self) -> None:
        """Loads the function. Raises WorkerError where the file or the function cannot be used."""
        self.close()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process, closed with it
        stacks = self._stacks.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(_ROOT), str(self._file), self._name, str(stacks), *self._parts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(stacks,),
            start_new_session=True,  # Ctrl-C is for the trainer, which then closes this
        )
        self._stop = weakref.finalize(self, _end, self._process, self._stacks)
        self._answer(time.monotonic() + _START_S, "was not loaded")

    def call(self, arguments: Mapping[str, Any], *, timeout_s: float) -> float:
        """The number that the function gives. Raises WorkerError or Hung, each with the innermost line of its file."""
        return self.call_with_parts(arguments, timeout_s=timeout_s)[0]

    def call_with_parts(self, arguments: Mapping[str, Any], *, timeout_s: float) -> list[float]:
        """The number that the function gives, and its parts. Raises as `call`."""
        if self._process is None or exit_code(self._process) is not None:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        request = pickle.dumps(dict(arguments))
        try:
            self._process.stdin.write(len(request).to_bytes(8, "big") + request)
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerError(self._dead()) from error
        answer: list[float] = self._answer(time.monotonic() + timeout_s, f"did not answer within {timeout_s:g} s")
        return answer

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._stop is not None:
            self._stop()
        self._process = self._stacks = self._stop = None

    def _answer(self, deadline_s: float, late: str) -> Any:
        assert self._process is not None and self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                where = self._place()
                self.close()
                raise WorkerTimeout(f"{late}{where}")
            part = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            if not part:
                raise WorkerError(self._dead())
            line += part
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return answer["value"]

    def _place(self) -> str:
        """The line that the process is executing; a signal requests it, which works in C code too."""
        assert self._process is not None and self._stacks is not None
        deadline_s = time.monotonic() + _PLACE_S
        while time.monotonic() < deadline_s and exit_code(self._process) is None:
            self._process.send_signal(signal.SIGUSR1)  # again, too: it may have been on its way to the function
            time.sleep(_ASK_S)
            # From a place, since the other process writes at the common one; the last line is still being written.
            *lines, _ = os.pread(self._stacks.fileno(), _MOST_STACK, 0).decode(errors="replace").split("\n")
            for line in lines:
                if f'"{self._file}"' in line:  # `  File "/path/reward.py", line 3 in count`, innermost first
                    number, _, function = line.rpartition(", line ")[2].partition(" in ")
                    return f" at {self._file.name}:{number} in {function}"
        return ""

    def _dead(self) -> str:
        assert self._process is not None
        code = wait_for_child(self._process, _START_S)
        self.close()
        if code is None:
            return "closed the pipe that its answers come through"
        died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"ended its process ({died})"


def _end(process: subprocess.Popen[bytes], stacks: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, stacks):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # a request that it never read: nobody waits for it
                continue


# The other side, in the process.

Value = TypeVar("Value")


def serve(file: str, name: str, stacks: int, parts: Sequence[str]) -> None:
    """Loads the function and answers requests on stdin and stdout until the pipe ends.

    What the function prints goes to stderr: stdout belongs to the answers. `stacks` is the descriptor for the stack of
    a call that hangs, `parts` are the names of further numbers in the function's dict.
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
