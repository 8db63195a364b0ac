"""Checks files and checkouts against all rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.maintain.lint import rules_build, rules_files, rules_versions
from npuenv.maintain.lint.gather import gather
from npuenv.maintain.lint.history import follow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from npuenv.core.finding import Finding
    from npuenv.maintain.lint.values import LintedTree
    from npuenv.matrix import Matrix

_OF_CHECKOUT = (
    rules_files.disjoint_asks,
    rules_files.undeclared_limits,
    rules_files.pins_that_pair,
    rules_versions.index_of_files,
)
_OF_SCRIPT = (
    rules_versions.pairs,
    rules_versions.pairs_of_commands,
    rules_versions.torch_npu_on_cann,
    rules_versions.triton_on_cann,
    rules_versions.wheels,
    rules_versions.index_of_script,
    rules_versions.cpu_index,
    rules_versions.vllm_pair,
    rules_versions.metadata_clash,
    rules_versions.broken_pins,
    rules_versions.triton_order,
    rules_build.soc_version,
    rules_build.source_under_sh,
    rules_build.tls,
    rules_build.refs,
    rules_build.vllm_target,
    rules_build.one_architecture,
    rules_build.unknown_instruction,
    rules_build.file_name,
)


def lint_paths(paths: Sequence[Path], matrix: Matrix) -> tuple[Finding, ...]:
    """Every finding about some files and checkouts, by path and line. Each is said once.

    Raises: BadInput where a path does not exist.
    """
    found: list[Finding] = []
    for path in paths:
        found += _lint(gather(path), matrix)
    unique = {(each.location, each.check, each.says.key, str(each.says.args)): each for each in reversed(found)}
    return tuple(sorted(unique.values(), key=_position))


def _position(finding: Finding) -> tuple[str, int, str, str]:
    assert finding.location is not None
    return finding.location.path, finding.location.line, finding.check, str(finding.says.args)


def _lint(checkout: LintedTree, matrix: Matrix) -> Iterator[Finding]:
    yield from checkout.findings
    for rule in _OF_CHECKOUT:
        yield from rule(checkout, matrix)
    histories = [follow(script, checkout, matrix) for script in checkout.scripts]
    yield from rules_build.different_vllm(histories)
    for history in histories:
        for each in _OF_SCRIPT:
            yield from each(history, matrix)
