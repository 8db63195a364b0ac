"""The doctor's report as one HTML page: whole in itself, inert, and readable in a real browser."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.fact import Evidence, known
from npuenv.core.finding import Fix, Status
from npuenv.core.messages import Message
from npuenv.report.doctor_forms import render_html
from tests.support.changes import examined

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.finding import Finding
    from npuenv.facts.collect import Facts

pytestmark = pytest.mark.slow

HOSTS = Path(__file__).parent.parent / "support" / "hosts"
EVIL = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">' onload='x' </pre></details>"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_EMPTY = {"meta", "br", "img", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """What a page consists of: its elements with their attributes, and its text; and whether each one is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def _of(name: str, lang: str = "en") -> tuple[list[Finding], str]:
    facts, findings = examined(name)
    return list(findings), render_html(findings, facts, lang=lang)


def _hostile(blank: Facts, found: Callable[..., Finding]) -> str:
    cure = Fix(Message("doctor.source", {"source": EVIL}), (("echo", EVIL), ("export", f"A={EVIL}")))
    findings = [
        replace(found("cards.healthy", Status.FAIL, EVIL, fix=cure, says=EVIL), source=EVIL),
        found("cann.found", Status.OK, EVIL),
    ]
    facts = replace(blank, environment=known({EVIL: EVIL}, Evidence(EVIL, EVIL)))
    return render_html(findings, facts, asked=EVIL)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["a2_healthy", "container_8020", "no_card"])
def test_every_finding_and_every_fact_is_on_the_page(name: str, lang: str) -> None:
    findings, text = _of(name, lang)
    page = Page(text)
    assert [finding.check for finding in findings if finding.check not in page.text] == []
    assert [item.line for finding in findings for item in finding.evidence if item.line not in page.text] == []
    assert "Ubuntu 22.04" in page.text and "torch_npu" in page.text
    assert ("lang", "zh-Hans" if lang == "zh" else "en") in [pair for _, attrs in page.tags for pair in attrs.items()]


def test_the_page_loads_nothing_and_its_policy_forbids_it() -> None:
    _, text = _of("container_8020")
    page = Page(text)
    assert {tag for tag, _ in page.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
    } == set()
    assert not any(name in attrs for _, attrs in page.tags for name in ("src", "href", "style", "onclick"))
    policies = [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1 and str(policies[0]).startswith("default-src 'none'; style-src 'sha256-")
    assert "@import" not in text and "url(" not in text


def test_hostile_text_stays_text(blank: Facts, found: Callable[..., Finding]) -> None:
    page = Page(_hostile(blank, found))
    assert {tag for tag, _ in page.tags} & {"script", "img"} == set()
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert page.text.count("<script>document.title='owned'</script>") >= 8


def test_values_stand_as_an_outline_and_long_ones_are_folded(blank: Facts) -> None:
    value = {"a": 1, "b": [{"c": "x", "d": None}, {"c": "", "d": True}], "e": ["f", ["g"]], "h": []}
    facts = replace(blank, environment=known(value, Evidence("", "")))  # type: ignore[arg-type]
    page = Page(render_html([], facts))
    outline = 'a: 1\nb:\n  - c: x, d: null\n  - c: "", d: true\ne:\n  - f\n  - - g\nh: -'
    assert outline in page.text and "8 lines" not in page.text
    facts = replace(blank, environment=known({f"A{number}": "x" for number in range(13)}, Evidence("", "")))
    assert "<summary>13 lines</summary>" in render_html([], facts)


def test_the_page_is_the_same_each_time_and_problems_stand_open_before_the_rest() -> None:
    findings, text = _of("container_8020")
    assert _of("container_8020")[1] == text
    bad = [finding.check for finding in findings if finding.status is Status.FAIL]
    assert bad and all(
        text.index(f'<section class="finding fail" id="{name}">') < text.index("<details") for name in bad
    )


def _browse(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    page = tmp_path / "report.html"
    page.write_text(text, encoding="utf-8")
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    argv = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--disable-sync"]
    argv += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", f"--log-net-log={tmp_path / 'net'}"]
    return subprocess.run([*argv, *options, page.as_uri()], capture_output=True, text=True, timeout=300, check=True)


def _asked_by_page(tmp_path: Path) -> set[str]:
    """The addresses that the page, and not the browser for itself, asked for."""
    lines = (tmp_path / "net").read_text(encoding="utf-8").splitlines()
    started = [json.loads(line.rstrip(","))["params"] for line in lines if '"params":{"initiator":' in line]
    return {params["url"] for params in started if params["initiator"] != "not an origin"}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_everything_runs_nothing_and_asks_nobody(
    tmp_path: Path, blank: Facts, found: Callable[..., Finding]
) -> None:
    ran = _browse(tmp_path, _hostile(blank, found), "--dump-dom")
    assert "CONSOLE" not in ran.stderr
    dom = Page(ran.stdout)
    assert "<title>npuenv doctor report</title>" in ran.stdout
    assert {"script", "img"} & {tag for tag, _ in dom.tags} == set()
    assert "cards.healthy" in dom.text and "cann.found" in dom.text and "onerror=" in dom.text
    assert _asked_by_page(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_policy_holds_back_what_would_otherwise_be_run_and_loaded(tmp_path: Path, blank: Facts) -> None:
    """The test above can fail: without the policy the same elements act, and with it the console tells of them."""
    evil = "<script>document.title='owned'</script><img src='http://127.0.0.1:9/pixel'></main>"
    text = render_html([], blank).replace("</main>", evil)
    ran = _browse(tmp_path, text, "--dump-dom")
    assert "Content Security Policy" in ran.stderr and "<title>npuenv doctor report</title>" in ran.stdout
    assert _asked_by_page(tmp_path) == set()
    ran = _browse(tmp_path, re.sub("<meta http-equiv[^>]*>", "", text), "--dump-dom")
    assert "<title>owned</title>" in ran.stdout
    assert _asked_by_page(tmp_path) == {"http://127.0.0.1:9/pixel"}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_nothing_is_wider_than_a_narrow_window(tmp_path: Path, blank: Facts, found: Callable[..., Finding]) -> None:
    """Text without a place to break, in every position, at the width of a phone."""
    long = "x" * 400
    cure = Fix(Message("doctor.source", {"source": long}), (("echo", long),))
    facts = replace(blank, environment=known({long: long}, Evidence(long, long)))
    text = render_html([found("cards.healthy", Status.FAIL, long, fix=cure, says=long)], facts, asked=long)
    text = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("<details", "<details open")
    probe = "<script>document.title=JSON.stringify([document.documentElement.scrollWidth,innerWidth])</script></main>"
    ran = _browse(tmp_path, text.replace("</main>", probe), "--window-size=500,900", "--dump-dom")
    scroll, inner = json.loads(re.findall("<title>(.*)</title>", ran.stdout)[0])
    assert scroll <= inner


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ((Status.OK, Status.SKIP), "ok"),
        ((Status.SKIP,), "ok"),
        ((), "ok"),
        ((Status.WARN, Status.OK), "warn"),
        ((Status.WARN, Status.UNKNOWN), "unknown"),
        ((Status.UNKNOWN, Status.FAIL, Status.OK), "fail"),
    ],
)
def test_the_worst_that_was_found_is_the_verdict(
    statuses: tuple[Status, ...], verdict: str, blank: Facts, found: Callable[..., Finding]
) -> None:
    text = render_html([found("cann.found", status) for status in statuses], blank)
    assert re.findall(r'<p class="verdict (\w+)">', text) == [verdict]


def test_an_area_says_how_much_of_it_is_well_and_how_much_does_not_apply(
    blank: Facts, found: Callable[..., Finding]
) -> None:
    statuses = (Status.OK, Status.OK, Status.SKIP, Status.SKIP, Status.SKIP)
    text = render_html([found("cann.found", status) for status in statuses], blank)
    brief = text.partition('<details class="area">')[2].partition('<span class="dim brief">')[2].partition("</span>")[0]
    assert re.findall("[0-9]+", brief) == ["2", "3"]
