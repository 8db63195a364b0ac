"""What releases of vllm and vllm-ascend take, recorded in `vllm_signatures.toml` by `record_vllm.py`."""

from __future__ import annotations

import functools
import inspect
import sys
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Method = TypeVar("Method", bound="Callable[..., Any]")

_RECORDED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
VLLM: list[Mapping[str, Any]] = _RECORDED["vllm"]  # oldest first
VLLM_ASCEND: list[Mapping[str, Any]] = _RECORDED["vllm_ascend"]


def fields(name: str) -> set[str]:
    """The fields that a class has in every release; `LLM` takes those of `EngineArgs`."""
    return set.intersection(*(set(release["fields"][name]) for release in VLLM))


def signature(names: Iterable[str]) -> Signature:
    """Example: ["prompts", "*", "use_tqdm="] -> (prompts, *, use_tqdm=...)"""
    kind: Any = Parameter.POSITIONAL_OR_KEYWORD
    found: list[Parameter] = []
    for each in names:
        if each.startswith("**"):
            found.append(Parameter(each[2:], Parameter.VAR_KEYWORD))
        elif each == "*":
            kind = Parameter.KEYWORD_ONLY
        else:
            found.append(Parameter(each.rstrip("="), kind, default=... if each.endswith("=") else Parameter.empty))
    return Signature(found)


def require(name: str, *args: object, **kwargs: object) -> None:
    """Raises TypeError if one of the releases would not take such a call."""
    for release in VLLM:
        signature(release["calls"][name]).bind(*args, **kwargs)


def stands_in(name: str) -> Callable[[Method], Method]:
    """Marks a method in the place of vllm's: it has the newest release's parameters, and takes what every one takes."""

    def checked(method: Method) -> Method:
        own = list(inspect.signature(method).parameters.values())[1:]
        newest = list(signature(VLLM[-1]["calls"][name]).parameters.values())
        assert [_form(each) for each in own] == [_form(each) for each in newest], name

        @functools.wraps(method)
        def call(self: object, *args: object, **kwargs: object) -> object:
            require(name, *args, **kwargs)
            return method(self, *args, **kwargs)

        return call  # type: ignore[return-value]

    return checked


def _form(parameter: Parameter) -> tuple[str, object, bool]:
    return parameter.name, parameter.kind, parameter.default is Parameter.empty
