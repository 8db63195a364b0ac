"""Trees of instructions as text: quoting, branches, and values that would break out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput
from npuenv.render.dockerfile import (
    ByArch,
    Comment,
    Exec,
    Export,
    Glob,
    Instruction,
    Joined,
    Run,
    Source,
    Var,
    When,
    arg,
    base_image,
    env,
    healthcheck,
    label,
    listed,
    text,
    user,
    workdir,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BREAK_OUTS = ("a'b", 'a"b', "a\nRUN evil", "a\rb", "$(evil)", "${HOME}", "`evil`", "a\\", "a\x00b", "a\x1bb")


def test_each_instruction_has_its_text() -> None:
    tree: tuple[Instruction, ...] = (
        arg("BASE", "name:tag"),
        base_image(Var("BASE")),
        arg("TARGETARCH"),
        label("org.example", "two words"),
        env("HCCL_CONNECT_TIMEOUT", "1500"),
        listed("SHELL", "/bin/bash", "-c"),
        listed("COPY", "a", "b", "/opt/"),
        workdir("/workspace"),
        user(Var("WHO")),
        healthcheck(("python3", "check.py"), interval_s=60, timeout_s=5),
        listed("ENTRYPOINT", "/bin/bash", "run.sh"),
    )
    assert text(tree).splitlines() == [
        'ARG BASE="name:tag"',
        "FROM ${BASE}",
        "ARG TARGETARCH",
        'LABEL org.example="two words"',
        'ENV HCCL_CONNECT_TIMEOUT="1500"',
        'SHELL ["/bin/bash", "-c"]',
        'COPY ["a", "b", "/opt/"]',
        'WORKDIR "/workspace"',
        "USER ${WHO}",
        'HEALTHCHECK --interval=60s --timeout=5s CMD ["python3", "check.py"]',
        'ENTRYPOINT ["/bin/bash", "run.sh"]',
    ]


def test_commands_are_joined_and_words_quoted() -> None:
    run = Run(
        (
            Source("/usr/local/Ascend/set_env.sh"),
            Export("LD_LIBRARY_PATH", Joined((Var("LD_LIBRARY_PATH"), ":/devlib"))),
            Exec(("pip", "install", "numpy<2", Var("INDEX")), env={"A": "", "B": "two words"}),
            Exec(("echo", "x"), append_to="/etc/bash.bashrc"),
            Exec(("rm", "-rf", Glob("/var/lib/apt/lists"))),
        )
    )
    assert text((run,)) == (
        "RUN . /usr/local/Ascend/set_env.sh \\\n"
        '    && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH}:/devlib" \\\n'
        "    && A='' B='two words' pip install 'numpy<2' \"${INDEX}\" \\\n"
        "    && echo x >> /etc/bash.bashrc \\\n"
        "    && rm -rf /var/lib/apt/lists/*\n"
    )


def test_branches_by_architecture_are_written_in_a_fixed_order() -> None:
    empty = ByArch({"x86_64": ()}, "not it")
    assert text((Run((empty,)),)).splitlines()[1:3] == [
        "        amd64) ;; \\",
        "        *) echo 'not it' >&2; exit 2 ;; \\",
    ]
    choice = ByArch({"aarch64": (Exec(("two",)),), "x86_64": (Exec(("one",)), Exec(("more",)))}, "neither")
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
    assert text((Run((choice, Exec(("last",)))),)).splitlines() == expected


def test_a_condition_may_be_wanted_to_fail() -> None:
    condition = Exec(("id", "-u", Var("WHO")), is_quiet=True)
    run = Run((When(condition, (Exec(("useradd", Var("WHO"))),), is_wanted=False),))
    assert text((run,)).splitlines() == [
        'RUN if ! id -u "${WHO}" >/dev/null 2>&1; then \\',
        '        useradd "${WHO}"; \\',
        "    fi",
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda value: base_image(value),
        lambda value: arg("NAME", value),
        lambda value: env("NAME", value),
        lambda value: label("name", value),
        lambda value: label(value, "value"),
        lambda value: listed("SHELL", value),
        lambda value: listed("COPY", value, "/opt/"),
        lambda value: listed("COPY", "file", value),
        lambda value: workdir(value),
        lambda value: user(value),
        lambda value: healthcheck((value,), interval_s=1, timeout_s=1),
        lambda value: listed("ENTRYPOINT", value),
        lambda value: Run((Exec(("echo", value)),)),
        lambda value: Run((Exec(("echo",), env={"A": value}),)),
        lambda value: Run((Exec(("echo",), append_to=value),)),
        lambda value: Run((Exec((Joined((Var("A"), value)),)),)),
        lambda value: Run((Exec((Glob(value),)),)),
        lambda value: Run((Source(value),)),
        lambda value: Run((Export("A", value),)),
        lambda value: Run((ByArch({"x86_64": ()}, value),)),
    ],
)
def test_a_value_that_could_end_its_instruction_is_refused(make: Callable[[str], Any]) -> None:
    for value in BREAK_OUTS:
        with pytest.raises(BadInput) as caught:
            text((make(value),))
        assert caught.value.message.key == "render.unsafe-value"
        assert caught.value.message.args["value"] == repr(value)


@pytest.mark.parametrize("name", ["A B", "A=B", "1A", "", "A\n", "A;evil", "A}"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    makes: tuple[Callable[[], Instruction], ...] = (
        lambda: arg(name),
        lambda: env(name, "x"),
        lambda: user(Var(name)),
        lambda: Run((Export(name, "x"),)),
        lambda: Run((Exec((Var(name),)),)),
    )
    for make in makes:
        with pytest.raises(BadInput) as caught:
            text((make(),))
        assert caught.value.message.key == "render.unsafe-name"


@pytest.mark.parametrize("value", ["image AS other", "--platform=other", ""])
def test_a_base_image_is_one_word(value: str) -> None:
    with pytest.raises(BadInput) as caught:
        text((base_image(value),))
    assert caught.value.message.key == "render.unsafe-word"


def test_a_comment_cannot_become_an_instruction_or_a_directive() -> None:
    lines = text((Comment("one\nRUN evil\nescape=`\nhadolint ignore=DL3008\r\ntail \\"),)).splitlines()
    assert lines == ["# one", "# RUN evil", "# - escape=`", "# - hadolint ignore=DL3008", "# tail"]


def test_a_long_comment_is_wrapped_at_blanks() -> None:
    lines = text((Comment("word " * 60),)).splitlines()
    assert max(map(len, lines)) <= 120
    assert " ".join(line.removeprefix("# ") for line in lines) == ("word " * 60).strip()
