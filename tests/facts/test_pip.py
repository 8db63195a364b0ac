"""pip's settings as pip reads them, compared with pip itself where it is there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import say
from npuenv.facts.pip import PipSetting, PipSettings, for_uv, pip_settings, without_secrets
from npuenv.host import Looked, PathState, Ran

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class Scripted:
    """A host of files and variables; `text` None is a file nobody may read."""

    environment: Mapping[str, str]
    files: Mapping[str, str | None] = field(default_factory=dict)
    folders: Sequence[str] = ()
    name: str = "scripted"

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        raise AssertionError("settings are read, no program is run")

    def look(self, path: str) -> Looked:
        if path in self.folders:
            return Looked(path, PathState.FOLDER)
        if path not in self.files:
            return Looked(path, PathState.ABSENT)
        text = self.files[path]
        if text is None:
            return Looked(path, PathState.UNREADABLE, error="Permission denied")
        return Looked(path, PathState.FILE, text=text)

    def environ(self) -> Mapping[str, str]:
        return {"HOME": "/h", **self.environment}


def read(environment: Mapping[str, str], files: Mapping[str, str | None] | None = None, **more: object) -> PipSettings:
    return pip_settings(Scripted(environment, files or {}, **more), prefix="/venv")  # type: ignore[arg-type]


def index(number: int) -> str:
    return f"[global]\nindex-url = https://i{number}/simple\n"


FILES = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "/h/.pip/pip.conf", "/h/.config/pip/pip.conf", "/venv/pip.conf"]


@pytest.mark.parametrize("number", range(len(FILES)))
def test_each_place_stands_above_those_before_it(number: int) -> None:
    files = {path: index(n) for n, path in enumerate(FILES[: number + 1])}
    assert read({}, files).index_url == PipSetting(f"https://i{number}/simple", FILES[number])


def test_a_named_file_stands_above_all_and_hides_the_users_own() -> None:
    files = {path: index(n) for n, path in enumerate(FILES[:4])} | {"/my.conf": "[global]\ntimeout = 7\n"}
    settings = read({"PIP_CONFIG_FILE": "/my.conf"}, files)
    assert settings.index_url == PipSetting("https://i1/simple", "/etc/pip.conf")
    assert settings.timeout_s == PipSetting("7", "/my.conf")


def test_the_null_device_switches_all_files_off_but_not_the_variables() -> None:
    files = {path: index(n) for n, path in enumerate(FILES)}
    settings = read({"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "https://v/simple"}, files)
    assert settings.index_url == PipSetting("https://v/simple", "$PIP_INDEX_URL")


def test_xdg_folders_move_the_files() -> None:
    files = {"/x/pip/pip.conf": "[global]\ntimeout = 1\n", "/y/pip/pip.conf": "[global]\ntimeout = 2\n"}
    assert read({"XDG_CONFIG_DIRS": "/x"}, files).timeout_s == PipSetting("1", "/x/pip/pip.conf")
    assert read({"XDG_CONFIG_DIRS": "/x", "XDG_CONFIG_HOME": "/y"}, files).timeout_s == PipSetting(
        "2", "/y/pip/pip.conf"
    )


def test_the_install_section_of_a_weak_file_beats_the_global_section_of_a_strong_one() -> None:
    files = {"/etc/pip.conf": "[install]\ntimeout = 5\n", "/venv/pip.conf": "[global]\ntimeout = 9\n"}
    assert read({}, files).timeout_s == PipSetting("5", "/etc/pip.conf")


def test_an_empty_value_does_not_count() -> None:
    files = {"/etc/pip.conf": index(1)}
    assert read({"PIP_INDEX_URL": ""}, files).index_url == PipSetting("https://i1/simple", "/etc/pip.conf")


def test_a_variable_replaces_a_whole_list() -> None:
    files = {"/etc/pip.conf": "[global]\nfind-links =\n    https://a/w\n    https://b/w\n"}
    assert [item.value for item in read({}, files).find_links] == ["https://a/w", "https://b/w"]
    settings = read({"PIP_FIND_LINKS": "https://c/w"}, files)
    assert settings.find_links == (PipSetting("https://c/w", "$PIP_FIND_LINKS"),)


def test_default_timeout_is_timeout() -> None:
    assert for_uv(read({"PIP_DEFAULT_TIMEOUT": "180"})).public["UV_HTTP_TIMEOUT"] == "180"


@pytest.mark.parametrize(("value", "meant"), [("0", "0"), ("12", "12"), ("many", None), ("", None)])
def test_retries_are_as_many_as_pip_would_make(value: str, meant: str | None) -> None:
    assert for_uv(read({"PIP_RETRIES": value})).public.get("UV_HTTP_RETRIES") == meant


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("true", True), ("0", False), ("no", False)])
def test_no_index_is_read_as_a_truth_value(value: str, is_on: bool) -> None:
    settings = read({"PIP_NO_INDEX": value})
    assert settings.is_no_index is is_on
    assert for_uv(settings).options == (("--no-index",) if is_on else ())


def test_an_unreadable_and_a_malformed_file_are_warnings() -> None:
    settings = read({}, {"/etc/pip.conf": None, "/venv/pip.conf": "[global]\ntimeout = 7\nindex-url\n"})
    texts = [say(warning) for warning in settings.warnings]
    assert settings.timeout_s is None, "pip reads nothing of such a file"
    assert "/etc/pip.conf" in texts[0] and "Permission denied" in texts[0]
    assert "/venv/pip.conf" in texts[1]


def test_missing_local_places_are_left_out_with_a_warning() -> None:
    environment = {
        "PIP_EXTRA_INDEX_URL": "file:///there/simple file:///gone/simple https://far/simple",
        "PIP_FIND_LINKS": "/wheels /nowhere",
        "PIP_CERT": "/no/cert.pem",
    }
    settings = read(environment, folders=("/there/simple", "/wheels"))
    assert [item.value for item in settings.extra_index_urls] == ["file:///there/simple", "https://far/simple"]
    assert [item.value for item in settings.find_links] == ["/wheels"]
    assert settings.cert is None
    assert [warning.args["place"] for warning in settings.warnings] == [
        "file:///gone/simple",
        "/no/cert.pem",
        "/nowhere",
    ]


def test_a_missing_default_index_never_becomes_the_public_one() -> None:
    alone = read({"PIP_INDEX_URL": "file:///gone"})
    assert (alone.index_url, alone.is_no_index) == (None, True)
    beside = read({"PIP_INDEX_URL": "file:///gone", "PIP_EXTRA_INDEX_URL": "https://e/simple"})
    assert beside.index_url is not None and beside.index_url.value == "https://e/simple"
    assert (beside.extra_index_urls, beside.is_no_index) == ((), False)


def test_extra_indexes_have_equal_rank_in_uv() -> None:
    uv = for_uv(read({"PIP_INDEX_URL": "https://i/simple", "PIP_EXTRA_INDEX_URL": "https://a/s https://b/s"}))
    assert uv.public["UV_DEFAULT_INDEX"] == "pip-index=https://i/simple"
    assert uv.public["UV_INDEX"] == "pip-extra-1=https://a/s pip-extra-2=https://b/s"
    assert uv.public["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_credentials_are_kept_apart_from_addresses() -> None:
    environment = {
        "PIP_INDEX_URL": "https://me:p%40ss@i/simple",
        "PIP_FIND_LINKS": "https://me:pw@w/wheels",
        "HTTPS_PROXY": "http://u:pw@proxy:1",
    }
    uv = for_uv(read(environment), {"mirror": "https://tok:en@m/simple"})
    assert uv.public["UV_DEFAULT_INDEX"] == "pip-index=https://i/simple"
    assert uv.secret["UV_INDEX_PIP_INDEX_USERNAME"] == "me"
    assert uv.secret["UV_INDEX_PIP_INDEX_PASSWORD"] == "p@ss"
    assert uv.secret["UV_INDEX_MIRROR_PASSWORD"] == "en"
    assert uv.secret["UV_FIND_LINKS"] == "https://me:pw@w/wheels"
    assert not any("pw" in value or "ss" in value for value in uv.public.values() if "://" in value)


def test_the_lower_case_proxy_wins_and_both_spellings_are_given() -> None:
    uv = for_uv(read({"HTTP_PROXY": "http://upper:1", "http_proxy": "http://lower:2", "NO_PROXY": "a.b"}))
    assert uv.secret["HTTP_PROXY"] == uv.secret["http_proxy"] == "http://lower:2"
    assert uv.secret["no_proxy"] == uv.secret["NO_PROXY"] == "a.b"


def test_pips_own_proxy_stands_above_the_variables() -> None:
    uv = for_uv(read({"PIP_PROXY": "user:pw@host:3128", "http_proxy": "http://other:1"}))
    assert uv.secret["http_proxy"] == uv.secret["HTTPS_PROXY"] == "http://user:pw@host:3128"


def test_trusted_hosts_and_certificates_are_passed_on() -> None:
    uv = for_uv(read({"PIP_TRUSTED_HOST": "a b", "PIP_CERT": "/c.pem"}, {"/c.pem": ""}))
    assert (uv.public["UV_INSECURE_HOST"], uv.public["SSL_CERT_FILE"]) == ("a b", "/c.pem")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/simple", "https://***@host/simple"),
        ("https://token@host/simple and http://a:b@c", "https://***@host/simple and http://***@c"),
        ("https://host/a@b", "https://host/a@b"),
        ("plain words", "plain words"),
    ],
)
def test_secrets_are_hidden_in_texts(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.slow
def test_it_agrees_with_pip_itself(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    own = tmp_path / "config/pip/pip.conf"
    own.parent.mkdir(parents=True)
    own.write_text("[global]\nindex-url = https://user-file/simple\ntimeout = 3\n[install]\ntimeout = 4\n")
    named = tmp_path / "named.conf"
    named.write_text("[global]\ntimeout = 5\n")
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "PIP_TRUSTED_HOST": "t"}
    for extra in ({}, {"PIP_CONFIG_FILE": str(named)}, {"PIP_CONFIG_FILE": "/dev/null"}):
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True, text=True, env={**environment, **extra, "PATH": "/usr/bin"}, check=True,
        )  # fmt: skip
        listed = dict(line.split("=", 1) for line in ran.stdout.splitlines() if "=" in line)
        settings = pip_settings(_Real({**environment, **extra}))
        assert ("install.timeout" in listed) == (settings.timeout_s == PipSetting("4", str(own)))
        assert listed.get("global.index-url", "").strip("'") == (settings.index_url.value if settings.index_url else "")
        assert listed[":env:.trusted-host"].strip("'") == settings.trusted_hosts[0].value


class _Real(Scripted):
    """The real files with other variables."""

    def look(self, path: str) -> Looked:
        place = Path(path)
        if place.is_dir():
            return Looked(path, PathState.FOLDER)
        return (
            Looked(path, PathState.FILE, text=place.read_text()) if place.is_file() else Looked(path, PathState.ABSENT)
        )
