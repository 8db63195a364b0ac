"""Instructions and commands as text: quoting, branches, and values that would break out."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput
from npuenv.render.dockerfile import (
    Command,
    Var,
    arg,
    by_arch,
    comment,
    env,
    export,
    healthcheck,
    label,
    listed,
    run,
    sh,
    when,
    workdir,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BREAK_OUTS = ("a'b", 'a"b', "a\nRUN evil", "a\rb", "$(evil)", "${HOME}", "`evil`", "a\\", "a\x00b", "a\x1bb")


def test_each_instruction_has_its_text() -> None:
    assert [
        arg("BASE", "name:tag"),
        arg("TARGETARCH"),
        label("org.example", "two words"),
        env("HCCL_CONNECT_TIMEOUT", "1500"),
        env("LIBRARIES", ("/lib/", Var("TARGETARCH"))),
        listed("SHELL", "/bin/bash", "-c"),
        listed("COPY", "a", "b", "/opt/"),
        workdir("/workspace"),
        healthcheck(("python3", "check.py"), interval_s=60, timeout_s=5),
        listed("ENTRYPOINT", "/bin/bash", "run.sh"),
    ] == [
        'ARG BASE="name:tag"',
        "ARG TARGETARCH",
        'LABEL org.example="two words"',
        'ENV HCCL_CONNECT_TIMEOUT="1500"',
        'ENV LIBRARIES="/lib/${TARGETARCH}"',
        'SHELL ["/bin/bash", "-c"]',
        'COPY ["a", "b", "/opt/"]',
        'WORKDIR "/workspace"',
        'HEALTHCHECK --interval=60s --timeout=5s CMD ["python3", "check.py"]',
        'ENTRYPOINT ["/bin/bash", "run.sh"]',
    ]


def test_commands_are_joined_and_words_quoted() -> None:
    assert run(
        sh(".", "/usr/local/Ascend/set_env.sh"),
        export("LD_LIBRARY_PATH", (Var("LD_LIBRARY_PATH"), ":/devlib")),
        sh("pip", "install", "numpy<2", Var("INDEX"), env={"A": "", "B": "two words"}),
        Command("rm -rf /var/lib/apt/lists/*"),
    ) == (
        "RUN . /usr/local/Ascend/set_env.sh \\\n"
        '    && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH}:/devlib" \\\n'
        "    && A='' B='two words' pip install 'numpy<2' \"${INDEX}\" \\\n"
        "    && rm -rf /var/lib/apt/lists/*"
    )


def test_a_branch_has_the_name_of_its_architecture_in_docker() -> None:
    empty = by_arch({"x86_64": ()}, "not it")
    assert run(empty).splitlines()[1:3] == [
        "        amd64) ;; \\",
        "        *) echo 'not it' >&2; exit 2 ;; \\",
    ]
    choice = by_arch({"x86_64": (sh("one"), sh("more")), "aarch64": (sh("two"),)}, "neither")
    expected = [
        'RUN case "${TARGETARCH}" in \\',
        "        amd64) \\",
        "            one \\",
        "                && more ;; \\",
        "        arm64) \\",
        "            two ;; \\",
        "        *) echo neither >&2; exit 2 ;; \\",
        "    esac \\",
        "    && last",
    ]
    assert run(choice, sh("last")).splitlines() == expected


def test_what_a_condition_holds_back_is_indented() -> None:
    conditional = when(sh("test", "-n", Var("WHO")), sh("useradd", Var("WHO")), sh("more"))
    assert run(conditional, may_log_in=True).splitlines() == [
        "RUN --mount=type=secret,id=netrc,target=/root/.netrc \\",
        '    if test -n "${WHO}"; then \\',
        '        useradd "${WHO}" \\',
        "            && more; \\",
        "    fi",
    ]


@pytest.mark.parametrize(
    "value", ["a; exit 9", "a && exit 9", "a | exit 9", "a > b", "*", "~", "a #b", "(a)", "{a,b}", "!"]
)
def test_the_shell_takes_a_value_with_its_signs_as_one_word(tmp_path: Path, value: str) -> None:
    commands = (
        by_arch({"x86_64": (sh("printf", "%s,", value),)}),
        sh("sh", "-c", "env", env={"A": value}),
        export("B", ("b", value)),
        sh("printf", "%s,", Var("B"), ("c", value)),
        sh(".", value),
    )
    script = run(*commands).removeprefix("RUN ")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TARGETARCH": "amd64"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"{value},") and f"A={value}\n" in done.stdout
    assert done.stdout.endswith(f"b{value},c{value},")
    assert f"{value}: No such file" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda value: arg("NAME", value),
        lambda value: env("NAME", value),
        lambda value: label("name", value),
        lambda value: label(value, "value"),
        lambda value: listed("SHELL", value),
        lambda value: listed("COPY", value, "/opt/"),
        lambda value: listed("COPY", "file", value),
        lambda value: workdir(value),
        lambda value: healthcheck((value,), interval_s=1, timeout_s=1),
        lambda value: listed("ENTRYPOINT", value),
        lambda value: env("NAME", (Var("A"), value)),
        lambda value: sh("echo", value),
        lambda value: sh("echo", env={"A": value}),
        lambda value: sh("echo", (Var("A"), value)),
        lambda value: export("A", value),
        lambda value: by_arch({"x86_64": ()}, value),
    ],
)
def test_a_value_that_could_end_its_instruction_is_refused(make: Callable[[str], str]) -> None:
    for value in BREAK_OUTS:
        with pytest.raises(BadInput) as caught:
            make(value)
        assert caught.value.message.key == "render.unsafe-value"
        assert caught.value.message.args["value"] == repr(value)


@pytest.mark.parametrize("name", ["A B", "A=B", "1A", "", "A\n", "A;evil", "A}"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    makes: tuple[Callable[[], str], ...] = (
        lambda: arg(name),
        lambda: env(name, "x"),
        lambda: env("NAME", Var(name)),
        lambda: export(name, "x"),
        lambda: sh("echo", env={name: "x"}),
        lambda: sh(Var(name)),
    )
    for make in makes:
        with pytest.raises(BadInput) as caught:
            make()
        assert caught.value.message.key == "render.unsafe-name"


def test_a_comment_cannot_become_an_instruction_or_a_directive() -> None:
    lines = comment("one\nRUN evil\nescape=`\nhadolint ignore=DL3008\r\ntail \\").splitlines()
    assert lines == ["# one", "# RUN evil", "# - escape=`", "# - hadolint ignore=DL3008", "# tail"]


def test_a_long_comment_is_wrapped_at_blanks() -> None:
    lines = comment("word " * 60).splitlines()
    assert max(map(len, lines)) <= 120
    assert " ".join(line.removeprefix("# ") for line in lines) == ("word " * 60).strip()
