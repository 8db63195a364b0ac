"""Findings as SARIF 2.1.0, for code scanning and editors.

Every check or rule is a SARIF rule, every problem a result at the level of its severity.
Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0 plus Errata 01, sections 3.13 to 3.49.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from npuenv import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from npuenv.core.finding import Finding

F = TypeVar("F", bound="Finding")
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BCP47 = {"en": "en", "zh": "zh-Hans"}


def sarif_log(*runs: dict[str, Any]) -> dict[str, Any]:
    """The document."""
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": list(runs)}


def sarif_run(
    program: str,
    problems: Sequence[F],
    *,
    code: int,
    rules: Iterable[dict[str, Any]],
    describe: Callable[[F], dict[str, Any]],
    lang: str = "",
) -> dict[str, Any]:
    """One run. `describe`: the message of a result, and what else it has besides rule and level."""
    known = list(rules)
    index = {rule["id"]: number for number, rule in enumerate(known)}
    language = {"language": BCP47[lang]} if lang else {}
    return {
        "tool": {"driver": {"name": program, "version": __version__, **language, "rules": known}},
        **language,
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "exitCode": int(code)}],
        "results": [
            {
                "ruleId": finding.check,
                "ruleIndex": index[finding.check],
                "level": finding.severity,
                **describe(finding),
            }
            for finding in problems
        ],
    }
