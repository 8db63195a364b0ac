"""No text makes the linter raise or hang."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import pytest

from npuenv.core.messages import say
from npuenv.maintain.lint import lint_paths
from npuenv.matrix import load_matrix

pytestmark = pytest.mark.slow

PIECES = (
    *(
        "FROM ",
        "RUN ",
        "ENV ",
        "ARG ",
        "COPY . /a",
        "pip install ",
        "-r ",
        "-e .",
        "torch==2.8.0",
        "torch_npu==2.8.0",
        "vllm-ascend==0.23.0",
    ),
    *(
        "$(",
        ")",
        "`",
        "${",
        "}",
        "$X",
        '"',
        "'",
        "\\",
        "\\\n",
        "\n",
        "&&",
        "||",
        ";",
        "if ",
        "then ",
        "else ",
        "fi ",
        "case ",
        "esac ",
        "{",
        "(",
        "<<E",
    ),
    *(
        "quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11",
        "git clone https://x/vllm-ascend ",
        "-b v0.23.0 ",
        "cd ",
        "source ",
        "#",
        "[",
        "]",
        "=",
        " ",
    ),
    *(
        "install_requires=",
        "setup(",
        "[project]\n",
        "dependencies=",
        "[options]\n",
        "\x00",
        "\u2028",
        "é",
        "\r",
        "==",
        "<2",
        ">=",
        ";python_version<'3'",
        "*",
    ),
)
NAMES = ("Dockerfile", "requirements.txt", "setup.py", "setup.cfg", "pyproject.toml", "a.sh")


def lint_text(name: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_bytes(text.encode("utf-8", errors="surrogatepass"))
        for each in lint_paths([Path(folder)], load_matrix()):
            assert say(each.says)


@pytest.mark.parametrize("name", NAMES)
def test_no_sequence_of_likely_pieces_makes_it_raise(name: str) -> None:
    rolls = random.Random(name)
    for _ in range(100):
        lint_text(name, "".join(rolls.choices(PIECES, k=rolls.randint(1, 60))))


@pytest.mark.parametrize("name", NAMES)
def test_no_text_makes_it_raise(name: str) -> None:
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes the texts")
    from hypothesis import strategies

    texts = strategies.text() | strategies.lists(strategies.sampled_from(PIECES)).map("".join)

    @hypothesis.settings(max_examples=60, deadline=None, database=None)
    @hypothesis.given(texts)
    def check(text: str) -> None:
        lint_text(name, text)

    check()


@pytest.mark.parametrize("piece", ["(", "$(", '"', "`", "if a; then ", "\\\n", "<<E\n", "${", "'", "[", "x=", "{ "])
@pytest.mark.slow
@pytest.mark.one_in(4)
def test_a_long_run_of_one_piece_is_read_in_reasonable_time(piece: str) -> None:
    began = time.process_time()
    lint_text("Dockerfile", "FROM a\nRUN " + piece * 6_000)
    lint_text("a.sh", "pip install " + piece * 6_000)
    # The slowest takes half a second. What walks to the end from every piece takes ten, at 100 ns a character.
    assert time.process_time() - began < 4
