"""Activation in the real shells, beside stand-ins for CANN: what is set, and that leaving undoes all of it."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.render.activation_cases import (
    POSIX_SHELLS,
    SHELLS,
    STARTING_PATH,
    Session,
    Shell,
    install,
    install_cann,
    stack_of,
)
from tests.support.sentences import says, sentence

pytestmark = pytest.mark.slow

LEAVE = "npuenv_deactivate"
VERL = "verl-0.7.0-cann8.3.RC1"  # Megatron-LM on PYTHONPATH
ROLL = "roll-deepspeed-cann8.5.1"

# What a user may have before: several exported, one exported empty, one set and not exported.
BUSY = {
    "PYTHONPATH": "/mine:/with blank",
    "LD_LIBRARY_PATH": "/l::/m",
    "VIRTUAL_ENV": "/old env",
    "PYTHONHOME": "/usr",
    "ASCEND_OPP_PATH": "",
    "ASCEND_OLD_SWITCH": "two\nlines",
    "OMP_NUM_THREADS": "9",
    "ODD": "quote ' \" back \\ $HOME `id` !x \n end",
    "BASH_ENV": "/no/such/file",
    "BASH_FUNC_cd%%": "() {  echo mine\n}",
}


@pytest.fixture
def session(shell: Shell, tmp_path: Path) -> Session:
    folder = tmp_path / "home"
    folder.mkdir()
    return Session(shell, folder)


@pytest.fixture(params=["old", "new"])
def cann(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return install_cann(tmp_path / "Ascend", request.param)


@pytest.fixture
def new_cann(tmp_path: Path) -> Path:
    return install_cann(tmp_path / "Ascend", "new")


def verl(cann: Path, root: Path) -> Path:
    return install(stack_of(VERL, cann_root=str(cann)), root)


@pytest.mark.parametrize("shell", SHELLS)
def test_it_sets_what_is_needed_and_is_silent(session: Session, tmp_path: Path, cann: Path) -> None:
    root, ascend = verl(cann, tmp_path / "my env"), tmp_path / "Ascend"
    home = cann if cann.name == "cann-8.5.0" else ascend / "ascend-toolkit/latest"
    told = session.run([session.enter(root), session.status(), session.look("in")])
    env = told["in"]
    assert (told.out, told.err) == ("status 0\n", "")
    assert env["VIRTUAL_ENV"] == str(root)
    atb = f"{ascend}/nnal/atb/latest/atb/cxx_abi_1"
    compilers = f"{home}/compiler/ccec_compiler/bin:{home}/tools/ccec_compiler/bin"
    assert env["PATH"] == f"{root}/bin:{atb}/bin:{home}/bin:{compilers}:{STARTING_PATH}"
    tbe = f"{home}/opp/built-in/op_impl/ai_core/tbe"
    assert env["PYTHONPATH"] == f"{root}/src/megatron-lm:{home}/python/site-packages:{tbe}"
    libraries = (env["LD_LIBRARY_PATH"] or "").split(":")
    assert libraries[:2] == [f"{atb}/lib", f"{atb}/examples"]
    assert libraries[-1] == f"{ascend}/driver/lib64/driver"
    assert env["ATB_HOME_PATH"] == atb
    assert env["ATB_SHARE_MEMORY_NAME_SUFFIX"] == ""
    assert env["TOOLCHAIN_HOME"] == f"{home}/toolkit"
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["VLLM_USE_V1"] == "1"
    assert (env["CMAKE_PREFIX_PATH"] is not None) is (home == cann)


@pytest.mark.parametrize("before", [{}, BUSY], ids=["bare", "busy"])
@pytest.mark.parametrize("shell", SHELLS)
def test_leaving_puts_everything_back(session: Session, before: dict[str, str], tmp_path: Path, cann: Path) -> None:
    root = verl(cann, tmp_path / "env")
    lines = [session.shell.own]
    if before and session.shell.keep:
        lines += [session.unset("TOOLCHAIN_HOME"), session.keep("TOOLCHAIN_HOME", "mine, not exported")]
        lines += [session.unset("CMAKE_PREFIX_PATH"), session.keep("CMAKE_PREFIX_PATH", "")]
    lines += [session.look("before"), session.enter(root), session.look("in"), LEAVE, session.look("after")]
    told = session.run(lines, before)
    assert told.err == ""
    assert told["after"].env == told["before"].env
    assert told["after"].state == told["before"].state
    assert told["in"]["TOOLCHAIN_HOME"] != told["before"]["TOOLCHAIN_HOME"]
    assert told["in"]["PYTHONHOME"] is None
    if before:
        assert told["before"]["ODD"] == BUSY["ODD"]
        assert told["in"]["PYTHONPATH"].endswith(":/mine:/with blank")  # type: ignore[union-attr]
        assert (told["in"]["ASCEND_OLD_SWITCH"] is None) is (cann.name == "cann-8.5.0")  # the newer script unsets it


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.one_in(2)
def test_environments_nest(session: Session, tmp_path: Path, cann: Path) -> None:
    first = verl(cann, tmp_path / "first")
    second = install(stack_of(ROLL, cann_root=str(cann)), tmp_path / "second")
    told = session.run(
        [
            session.shell.own, session.look("before"),
            session.enter(first), session.look("first"),
            session.enter(second), session.look("second"),
            session.enter(first), session.look("third"),
            LEAVE, session.look("second-again"),
            LEAVE, session.look("first-again"),
            LEAVE, session.look("after"),
        ]
    )  # fmt: skip
    assert told.err == ""
    for name in ("second", "first"):
        assert told[f"{name}-again"].env == told[name].env
        assert told[f"{name}-again"].state == told[name].state
    assert told["after"].env == told["before"].env
    assert told["after"].state == told["before"].state
    assert [told[name]["VIRTUAL_ENV"] for name in ("first", "second", "third")] == [str(first), str(second), str(first)]
    assert told["second"]["HCCL_CONNECT_TIMEOUT"] == "3600"


@pytest.mark.parametrize("shell", SHELLS)
def test_entering_twice_is_like_once(session: Session, tmp_path: Path, cann: Path) -> None:
    root = verl(cann, tmp_path / "env")
    enter = session.enter(root)
    told = session.run(
        [
            session.look("before"),
            enter,
            session.look("once"),
            enter,
            session.look("twice"),
            LEAVE,
            session.look("after"),
        ],
        BUSY,
    )
    assert told.err == ""
    assert told["twice"].env == told["once"].env
    assert told["after"].env == told["before"].env
    assert told["after"].state == told["before"].state


@pytest.mark.slow
@pytest.mark.parametrize("shell", POSIX_SHELLS)
@pytest.mark.parametrize("options", ["set -eu", "set -a", "set -f", "IFS=/:"])
@pytest.mark.one_in(3)
def test_options_of_the_shell_do_no_harm(session: Session, options: str, tmp_path: Path, new_cann: Path) -> None:
    root = verl(new_cann, tmp_path / "env")
    enter = session.enter(root)
    told = session.run(
        [options, session.look("before"), enter, session.look("in"), enter, LEAVE, session.look("after")]
    )
    assert told.err == ""
    assert told["in"]["VIRTUAL_ENV"] == str(root)
    assert told["after"].env == told["before"].env
    if (session.shell.name, options) != ("dash", "set -a"):  # there dash exports even what is unset, without a value
        assert told["after"].state == told["before"].state


@pytest.mark.parametrize("shell", POSIX_SHELLS)
def test_it_can_be_sourced_and_left_inside_functions_and_where_builtins_have_aliases(
    session: Session, tmp_path: Path, new_cann: Path
) -> None:
    root = verl(new_cann, tmp_path / "env")
    options = {"bash": "shopt -s expand_aliases", "zsh": "setopt warn_create_global", "dash": ":"}
    told = session.run(
        [
            options[session.shell.name],
            "alias unset='echo alias' export='echo alias' typeset='echo alias'",
            f"enter() {{ {session.enter(root)}; }}", f"leave() {{ {LEAVE}; }}",
            session.look("before"), "enter", session.look("in"), "leave", session.look("after"),
        ]
    )  # fmt: skip
    assert (told.out, told.err) == ("", "")
    assert told["in"]["VIRTUAL_ENV"] == str(root)
    assert told["after"].env == told["before"].env
    assert told["after"].state == told["before"].state


ODD_NAMES = ("two words", "o'clock $HOME `id` !x", 'a"b;c&(d)*[e]{f}~', "back\\slash", "中文", "new\nline")


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        # In every shell the name with the most signs; the others are slow.
        pytest.param(
            *each.values,
            name,
            marks=[*each.marks, *([] if at == 1 else [pytest.mark.slow])],
        )
        for each in SHELLS
        for at, name in enumerate(ODD_NAMES)
    ],
)
def test_odd_folders_do_no_harm(session: Session, name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    cann = install_cann(tmp_path / "a b/Ascend", "new")
    root = verl(cann, tmp_path / name / "env")
    link = session.folder / "plain"
    link.symlink_to(root)
    enter = session.enter(link)
    told = session.run([session.look("before"), enter, session.look("in"), enter, LEAVE, session.look("after")])
    assert told.err == ""
    assert told["in"]["VIRTUAL_ENV"] == str(root)
    assert told["in"]["PATH"].startswith(f"{root}/bin:")  # type: ignore[union-attr]
    assert told["in"]["ATB_HOME_PATH"] == f"{tmp_path}/a b/Ascend/nnal/atb/latest/atb/cxx_abi_1"
    assert told["after"].env == told["before"].env


def odd_values() -> dict[str, str]:
    """Values of every printable and unprintable kind; the same ones on each run."""
    chosen = random.Random(7)
    fixed = [
        "",
        " ",
        "'",
        '"',
        "\\",
        "\\\\",
        "!!",
        "\n",
        "\n\n",
        "a\n",
        "x\\\ny",
        "x\\\\\n",
        "\\'",
        "\t\r\v",
        "é中",
        "$(id)`id`$X",
    ]
    fixed.append("".join(map(chr, range(1, 128))))
    letters = "a \\\n'\"!$`*?{}[]~;|&<>#^()=\t%é"
    drawn = ["".join(chosen.choices(letters, k=chosen.randint(0, 12))) for _ in range(60)]
    return {f"ODD_{number}": value for number, value in enumerate([*fixed, *drawn])}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_value_arrives_and_returns_as_it_is(session: Session, tmp_path: Path) -> None:
    values = odd_values()
    backwards = dict(zip(values, reversed(values.values()), strict=True))
    root = install(stack_of("cpu", env=values), tmp_path / "env")
    told = session.run(
        [session.look("before"), session.enter(root), session.look("in"), LEAVE, session.look("after")], backwards
    )
    assert {name: told["before"][name] for name in values} == backwards
    assert {name: told["in"][name] for name in values} == values
    assert told["after"].env == told["before"].env


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_roles_and_numbers_of_nodes_choose_settings(session: Session, tmp_path: Path, new_cann: Path) -> None:
    root = install(stack_of(ROLL, cann_root=str(new_cann)), tmp_path / "env")
    enter = session.enter(root)
    told = session.run(
        [
            enter, session.look("general"),
            session.export("NPUENV_ROLE", "train"), enter, session.look("train"),
            session.export("NPUENV_ROLE", "rollout"), session.export("NPUENV_NODES", "multi"), enter,
            session.look("rollout"),
            session.unset("NPUENV_ROLE"), session.unset("NPUENV_NODES"), enter, session.look("general-again"),
        ]
    )  # fmt: skip
    names = ("HCCL_CONNECT_TIMEOUT", "HCCL_OP_EXPANSION_MODE", "HCCL_EXEC_TIMEOUT", "TASK_QUEUE_ENABLE",
             "PYTORCH_NPU_ALLOC_CONF", "CPU_AFFINITY_CONF", "VLLM_ASCEND_ENABLE_PREFETCH_MLP",
             "VLLM_ASCEND_ENABLE_DENSE_OPTIMIZE", "ACL_OP_COMPILER_CACHE_DIR", "ATB_LOG_LEVEL")  # fmt: skip
    cache = f"{session.folder}/.cache/npuenv/operators"
    assert {name: [told[name][each] for each in names] for name in ("general", "train", "rollout")} == {
        "general": ["3600", None, None, None, None, None, None, None, None, None],
        "train": ["3600", "AIV", None, "2", "expandable_segments:True", "2", None, None, cache, "ERROR"],
        "rollout": ["3600", "AIV", "1091", "1", "", None, "1", None, cache, "ERROR"],
    }
    assert told["general-again"].env == told["general"].env


@pytest.mark.parametrize("shell", SHELLS)
def test_a_choice_that_chooses_nothing_is_told_once(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("vllm-ascend-0.18.0", cann_root=None), tmp_path / "env")
    enter = session.enter(root)
    assert session.run([enter]).err == ""
    told = session.run([session.export("NPUENV_ROLE", "rollout"), enter, session.status()])
    assert told.out == "status 0\n"
    assert told.err == f"npuenv: {sentence('stack.activate-no-profile', stack='vllm-ascend-0.18.0')}\n"


@pytest.mark.parametrize("shell", [each for each in SHELLS if each.id != "tcsh"])
def test_the_choice_need_not_be_exported(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("roll-0.3.0-cann9.0.0", cann_root=None), tmp_path / "env")
    told = session.run([session.keep("NPUENV_ROLE", "train"), session.enter(root), session.look("in")])
    assert told["in"]["TASK_QUEUE_ENABLE"] == "2"
    assert told["in"]["NPUENV_ROLE"] is None


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("is_active", [False, True])
def test_an_unknown_role_changes_nothing(session: Session, is_active: bool, tmp_path: Path) -> None:
    root = install(stack_of("cpu"), tmp_path / "env")
    first = [session.enter(root)] if is_active else []
    wrong = session.export("NPUENV_ROLE", "trian")
    told = session.run(
        [*first, wrong, session.look("before"), session.enter(root), session.status(), session.look("after")]
    )
    assert told.out == "status 1\n"
    args = {"variable": "NPUENV_ROLE", "value": "trian", "known": "build, rollout, train"}
    assert told.err == f"npuenv: {sentence('stack.activate-choice', **args)}\n"
    assert told["after"].env == told["before"].env
    assert told["after"].state == told["before"].state


@pytest.mark.parametrize("shell", SHELLS[:1])
def test_it_speaks_chinese_where_the_locale_does(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("cpu"), tmp_path / "env")
    told = session.run([session.enter(root)], {"NPUENV_NODES": "3", "LANG": "zh_CN.UTF-8"})
    assert told.err == "npuenv: NPUENV_NODES 的值为 3；可选 multi, single，或留空。未做任何更改。\n"


def proxies_in(env: dict[str, str], session: Session, root: Path) -> dict[str, str | None]:
    told = session.run(
        [session.look("before"), session.enter(root), session.look("in"), LEAVE, session.look("after")], env
    )
    assert told["after"].env == told["before"].env
    names = ("http_proxy", "HTTPS_PROXY", "all_proxy", "NO_PROXY")
    found = {name: told["in"][name] for name in names if told["in"][name] is not None}
    return {**found, **({"said": told.err} if told.err else {})}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_proxies_come_from_the_user_and_only_when_asked_for(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("cpu"), tmp_path / "env")
    secret = "http://me:pa'ss!word@proxy.example:3128"
    user = {"HTTP_PROXY": secret, "no_proxy": "localhost"}
    assert proxies_in(user, session, root) == {}
    assert proxies_in({**user, "NPUENV_PROXY": "1"}, session, root) == {"http_proxy": secret, "NO_PROXY": "localhost"}
    given = {"http_proxy": "http://other:1", "HTTPS_PROXY": "http://other:1", "NO_PROXY": "localhost"}
    assert proxies_in({"no_proxy": "localhost", "NPUENV_PROXY": "other:1"}, session, root) == {
        name: value for name, value in given.items() if name != "NO_PROXY"
    }
    (session.folder / ".config/pip").mkdir(parents=True)
    (session.folder / ".config/pip/pip.conf").write_text(
        f"[global]\nproxy = http://weaker:2\n[install]\nproxy = {secret}%2\n"
    )
    by_pip = {"http_proxy": f"{secret}%2", "HTTPS_PROXY": f"{secret}%2", "NO_PROXY": "localhost"}
    assert proxies_in({**user, "NPUENV_PROXY": "yes"}, session, root) == by_pip
    asked = {**user, "NPUENV_PROXY": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_PROXY": "other:1"}
    assert proxies_in(asked, session, root) == given
    left = [
        path for path in root.rglob("*") if path.is_file() and "bin" not in path.parts and b"word@" in path.read_bytes()
    ]
    assert left == []


@pytest.mark.parametrize("shell", SHELLS[:1])
def test_asking_for_a_proxy_that_nobody_configured_is_said(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("cpu"), tmp_path / "env")
    asked = {"NPUENV_PROXY": "1", "PIP_CONFIG_FILE": "/dev/null"}
    assert list(proxies_in(asked, session, root)) == ["said"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_missing_cann_is_said_and_is_no_failure(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("verl-0.7.1-cann8.5.0", cann_root="/no/such/cann"), tmp_path / "env")
    told = session.run([session.enter(root), session.status(), session.look("in")])
    assert told.out == "status 0\n"
    assert told.err.splitlines() == [
        f"npuenv: {sentence('stack.activate-no-script', path=f'/no/such/{path}')}"
        for path in ("cann/set_env.sh", "nnal/atb/set_env.sh")
    ]
    assert told["in"]["VIRTUAL_ENV"] == str(root)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_of_cann_that_gives_up_leaves_the_shell_as_it_was(
    session: Session, tmp_path: Path, new_cann: Path
) -> None:
    root = verl(new_cann, tmp_path / "env")
    (new_cann / "set_env.sh").write_text("export HALF=1\nexit 7\n")
    told = session.run([session.look("before"), session.enter(root), session.status(), session.look("after")])
    assert told.out == "status 1\n"
    assert says(told.err, "stack.activate-ended", code=7)
    assert told["after"].env == told["before"].env
    assert told["after"].state == told["before"].state


@pytest.mark.parametrize("shell", SHELLS)
def test_without_bash_the_scripts_of_cann_cannot_be_read(session: Session, tmp_path: Path, new_cann: Path) -> None:
    root = verl(new_cann, tmp_path / "env")
    told = session.run([session.export("PATH", "/no/such/folder"), session.enter(root), session.status()])
    assert told.out == "status 1\n"
    assert says(told.err, "stack.activate-no-bash")


@pytest.mark.parametrize("shell", SHELLS)
def test_an_environment_without_its_interpreter_is_a_failure(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("cpu"), tmp_path / "env")
    (root / "bin/python").unlink()
    told = session.run(
        [session.look("before"), session.enter(root), session.look("after"), session.enter(root), session.status()]
    )
    assert not told.out.endswith("status 0\n")
    assert "bin/python" in told.err
    assert told["after"].env == told["before"].env


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("text", [None, "{"])
def test_without_its_data_activation_is_a_failure_in_one_line(
    session: Session, text: str | None, tmp_path: Path
) -> None:
    root = install(stack_of("cpu"), tmp_path / "env")
    (root / ".npuenv/activation.json").unlink()
    if text:
        (root / ".npuenv/activation.json").write_text(text)
    told = session.run([session.look("before"), session.enter(root), session.status(), session.look("after")])
    assert told.out == "status 1\n"
    assert len(told.err.splitlines()) == 1
    assert told["after"].env == told["before"].env


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_inside_an_active_one_activates_for_itself(session: Session, tmp_path: Path, new_cann: Path) -> None:
    root = verl(new_cann, tmp_path / "env")
    inner = session.folder / "inner"
    lines = [session.look("child"), session.enter(root), LEAVE, session.look("child-after")]
    inner.write_text("\n".join(lines) + "\n")
    told = session.run([session.enter(root), " ".join([*session.shell.argv, str(inner)])])
    assert told["child"]["VIRTUAL_ENV"] == str(root)
    assert told["child-after"].env == told["child"].env
    assert told["child-after"].state == told["child"].state


def run_as_file(session: Session, path: Path, *, cwd: Path, lang: str = "C") -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(session.folder), "LC_ALL": lang}
    return subprocess.run([*session.shell.argv, str(path)], cwd=cwd, env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["env", "it's an env"])
def test_run_instead_of_sourced_it_says_in_one_line_that_it_has_to_be_sourced(
    session: Session, name: str, tmp_path: Path
) -> None:
    root = install(stack_of("cpu"), tmp_path / name)
    file = session.shell.file
    for path in (root / file, Path(file)):
        ran = run_as_file(session, path, cwd=root)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert says(ran.stderr, "stack.activate-unsourced")
        assert len(ran.stderr.splitlines()) == 1
        word = ". " if file == "activate.sh" else "source "
        assert name != "env" or ran.stderr.endswith(f": {word}{root / file}\n")
    assert "不能直接运行" in run_as_file(session, root / file, cwd=root, lang="zh_CN.UTF-8").stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_of_the_same_name_that_sources_it_activates(session: Session, tmp_path: Path) -> None:
    root = install(stack_of("cpu"), tmp_path / "env")
    own = tmp_path / "mine" / session.shell.file
    own.parent.mkdir()
    own.write_text("\n".join([session.enter(root), "echo $VIRTUAL_ENV"]) + "\n")
    ran = run_as_file(session, own, cwd=own.parent)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{root}\n", "")
