"""The tables of error patterns: every row names what exists, every cause has its sentences, every sign can be given."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from npuenv import diagnose
from npuenv.core.messages import Message, say
from npuenv.diagnose.text import Text
from npuenv.host.report import read_paste
from npuenv.matrix.error_patterns import ErrorPattern, load_error_patterns

PATTERNS = load_error_patterns()
# The causes that labelled reports use; others of ours come on top.
TAXONOMY = """
driver-too-old device-busy unsupported-soc dtype-unsupported-soc device-not-mounted driver-mount-incomplete
driver-absent-at-build device-permission passwd-entry-missing visible-devices-invalid image-arch-mismatch
image-layer-tar shm-too-small nofile-too-low env-not-sourced cann-missing cann-too-old cann-too-new
cann-kernels-wrong cann-python-deps-missing nnal-missing nnal-mismatch python-version glibc-too-old
torch-torch_npu-mismatch torch_npu-wrong-release torchvision-mismatch numpy2 transformers-too-new
vllm-vllm_ascend-mismatch vllm-version-unparsable install-order pip-index arch-wheel-missing soc-build-mismatch
triton-residue triton-toolchain-mismatch triton-unsupported-soc flash-attn-unsupported import-shadowed
libgomp-static-tls lib-path-missing backend-autoload-conflict mindspeed-too-old custom-kernel-build
custom-ops-missing gcc-too-old ray-gpu-instead-of-npu ray-visible-devices ray-too-new port-conflict
hccl-tls-mismatch hccl-ifname hccl-connect-timeout hccl-link-down hccl-ranktable memory-oom-config
allocator-expandable-segments graph-streams-exhausted nz-enabled-in-rl hccl-exec-timeout hccl-buffsize-too-small
hccl-peer-died two-cann-installs framework-not-adapted framework-known-bug cuda-package-on-npu release-wheel-incomplete
build-option-removed k8s-not-schedulable device-plugin
""".split()  # noqa: SIM905


def test_ids_are_unique() -> None:
    ids = [row.id for row in (*PATTERNS.rows, *PATTERNS.discriminators, *PATTERNS.bounds)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_id_has_its_sentences(lang: str) -> None:
    for cause in PATTERNS.causes.values():
        texts = [cause.says, cause.fix, *([cause.expect] if cause.check else [])]
        texts += [cause.other_fix] if cause.other_texts else []
        assert all(text[lang] for text in texts), cause.id
    assert all(row.expect[lang] for row in PATTERNS.discriminators)
    prefixes = {"noise": "seen", "not-environment": "not"}
    keys = {f"{prefixes[row.kind]}-{row.cause}" for row in PATTERNS.rows if row.kind != "cause"}
    for key in sorted(keys):
        assert say(Message(f"diagnose.{key}"), lang)


def test_rows_and_separations_name_known_causes() -> None:
    for row in PATTERNS.rows:
        assert row.kind != "cause" or row.cause in PATTERNS.causes, row.id
    for pair in PATTERNS.discriminators:
        assert {pair.one, pair.other} <= {*PATTERNS.causes}, pair.id


def test_a_fix_for_some_lines_is_for_lines_that_rows_find() -> None:
    for cause in PATTERNS.causes.values():
        found = "\n".join(text for row in PATTERNS.rows if row.cause == cause.id for text in row.patterns)
        assert [text for text in cause.other_texts if text not in found] == [], cause.id


def test_every_cause_has_a_row() -> None:
    assert {*PATTERNS.causes} == {row.cause for row in PATTERNS.rows if row.kind == "cause"}


def wanted(row: ErrorPattern) -> tuple[str, ...]:
    return (*row.patterns, *row.all_of, *row.any_of, *row.unless)


def written_signs() -> tuple[set[str], tuple[str, ...]]:
    """Strings of the package that may be signs, and the fixed beginnings or ends of those that are composed."""
    whole: set[str] = {row.sign for row in PATTERNS.bounds}
    parts: list[str] = []
    for path in Path(diagnose.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts += [str(piece.value) for piece in node.values if isinstance(piece, ast.Constant)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                whole.add(node.value)
    return whole, tuple(part for part in parts if re.fullmatch(r"[a-z]+-|-[a-z]+", part))


def test_every_sign_of_a_row_can_be_given() -> None:
    whole, parts = written_signs()
    for row in PATTERNS.rows:
        for sign in (text[1:] for text in wanted(row) if text.startswith("@")):
            assert sign in whole or sign.startswith(parts) or sign.endswith(parts), (row.id, sign)


def test_no_text_is_too_short_to_mean_anything() -> None:
    for row in PATTERNS.rows:
        for text in row.patterns:
            assert len(text.replace("*", "").encode()) >= 4, (row.id, text)


_BARE_CODE = re.compile(r"(?:ret is|error code is|result =|drvRetCode=) ?-?\d+")


def test_no_code_alone_makes_a_cause_sure() -> None:
    """A code has several causes each; alone it makes a candidate at most."""
    ambiguous = {"#EI0006", "#-8005", "#500001", "#507899", "#207001", "#EE9999", "#E19999", "#507033", "#507011"}
    for row in PATTERNS.rows:
        lone = [text for text in row.patterns if text in ambiguous or _BARE_CODE.fullmatch(text)]
        assert not lone or row.confidence < 0.5 or row.all_of or row.any_of or row.kind != "cause", row.id


def test_labels_are_all_known() -> None:
    known = {*PATTERNS.causes} | {row.cause for row in PATTERNS.rows}
    assert {*TAXONOMY} <= known


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("cannot open", 1),
        ("CANNOT OPEN", 1),
        ("lib*.so: cannot", 1),
        ("cannot*lib", None),
        ("second*third", None),
        ("torch==2", 3),
        ("nothing of that kind", None),
        ("2.7", 3),
        ("'torch'==", None),
        ("name 'a' from", 4),
        ("is so bad", 6),
    ],
)
def test_a_wanted_text(wanted: str, found: int | None) -> None:
    told = 'libx.so: cannot open\nsecond\nthird torch==2.7\nname "a" from\nWARNING is so bad\nERROR is so bad\n'
    line = Text(read_paste(told.encode()).lines).first(wanted)
    assert (line.number if line else None) == found


def test_hits_come_once_a_line_and_in_order() -> None:
    text = Text(read_paste(b"a error error\nb\nc error\n").lines)
    assert [line.number for line in text.all("error")] == [1, 3]
    assert [line.number for line in text.with_any(("error", "b"))] == [1, 2, 3]
    assert "error" in text
    assert 5 not in text


def test_a_code_says_what_it_means_and_stands_in_one_row_of_the_catalogue() -> None:
    rows = [row for row in PATTERNS.rows if row.id.startswith("code.")]
    assert all(row.means and row.source for row in rows)
    codes = [text for row in rows for text in row.patterns if text.startswith("#")]
    assert len(codes) > 200
    assert len(codes) - len({*codes}) <= 2  # 207004 and EI0007 have a row for each cause
