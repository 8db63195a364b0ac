"""A mesh of pings as text and as one HTML page with its matrix, both made from the `npuenv.mesh/1` document.

The page is self-contained, as the doctor's is.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message, clean, say
from npuenv.report.doctor_forms import as_text, whole_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_LINES = 30  # of one kind, in the text; the document and the page have more
_MOST_OPEN = 10  # of one kind, on the page, before the others are folded away
_MOST_ROWS = 500  # of single pings on the page
_PARTS = (("culprits", "fail"), ("lossy", "warn"), ("unknown", "unknown"))
_TONES = {"o": "ok", "l": "warn", "w": "fail", "f": "fail", "s": "unknown", "u": "unknown"}
_PALE = "uw"  # letters that share their tone with another one
_SIDE_PX = 900  # of the picture, as near as whole pixels allow
_LARGEST_CELL_PX, _MARGIN_PX, _TEXT_PX = 16, 110, 11


def lines(document: Mapping[str, Any], lang: str, *, is_quiet: bool = False) -> Iterator[str]:
    """The report as lines of text. Quiet: only what is not well."""
    if not is_quiet:
        yield say(brief(document)[0], lang)
    for part, _ in _PARTS:
        found = document[part]
        if found:
            yield _say(f"head-{part}", lang) + ":"
            for each in found[:_MOST_LINES]:
                yield f"  {clean(each['says'])}"
                if each["or"]:
                    yield f"    {_alternatives(each, lang)}"
            if len(found) > _MOST_LINES:
                yield f"  {_say('more', lang, count=len(found) - _MOST_LINES)}"
    absent = list(_absent(document, lang))
    if absent:
        yield _say("head-missing", lang) + ":"
        yield from (f"  {clean(each)}" for each in absent[:_MOST_LINES])
        if len(absent) > _MOST_LINES:
            yield f"  {_say('more', lang, count=len(absent) - _MOST_LINES)}"
    if not is_quiet:
        yield say(brief(document)[1], lang)
        yield from document["limits"]


def render_html(document: Mapping[str, Any], lang: str, *, asked: str = "") -> str:
    """The page. `asked` is the command line that made it, shown in the foot; "" leaves it away."""
    body = [
        *_head(document, lang),
        *(part for name, css in _PARTS for part in _findings(document[name], name, css, lang)),
        *_missing(list(_absent(document, lang)), lang),
        f"<h2>{as_text(_say('head-matrix', lang))}</h2>",
        *_legend(lang),
        *_matrix(document),
        *_pings(document, lang),
        '<footer class="meta">',
        *([f"<p><code>{as_text(asked)}</code></p>"] if asked else []),
        f"<p>{as_text(_say('foot', lang, version=document['npuenv']))}</p></footer>",
    ]
    return whole_page(_say("title", lang), "\n".join(body), lang)


def brief(document: Mapping[str, Any]) -> tuple[Message, Message]:
    """What it came to in two lines: the counts, and the verdict."""
    mode = Message(f"mesh.mode-{document['mode']}")
    counts = Message("mesh.counts", {"mode": mode, "rounds": document["rounds"], **document["summary"]})
    is_lossy = document["exit"] == 0 and document["summary"]["lossy"]
    none = "none" if any(each["card"] is not None for each in document["missing"]) else "no-node"
    word = none if not document["devices"] else f"{document['exit']}{'-lossy' if is_lossy else ''}"
    return counts, Message(f"mesh.verdict-{word}")


def _alternatives(culprit: Mapping[str, Any], lang: str) -> str:
    return clean(_say("or", lang, others=tuple(other["says"] for other in culprit["or"])))


def _absent(document: Mapping[str, Any], lang: str) -> Iterator[str]:
    for each in document["missing"]:
        node, card = each["node"], each["card"]
        name = node if card is None else Message("mesh.card", {"node": node, "card": card})
        yield _say("fault", lang, name=name, why=each["says"])
    for each in document["lost"]:
        yield _say("fault", lang, name=each["node"], why=each["says"])


def _head(document: Mapping[str, Any], lang: str) -> Iterator[str]:
    css = {0: "ok", 1: "fail", 3: "unknown"}[document["exit"]]
    yield f"<header>\n<h1>{as_text(_say('title', lang))}</h1>"
    yield f'<p class="dim">{as_text(say(brief(document)[0], lang))}</p>'
    yield f'<p class="verdict {css}"><span class="label">{as_text(say(brief(document)[1], lang))}</span></p>'
    for limit in document["limits"]:
        yield f"<p>{as_text(limit)}</p>"
    yield "</header>"


def _findings(found: Sequence[Mapping[str, Any]], name: str, css: str, lang: str) -> Iterator[str]:
    if not found:
        return
    yield f"<h2>{as_text(_say(f'head-{name}', lang))}</h2>"
    shown = len(found) if len(found) <= _MOST_OPEN + 1 else _MOST_OPEN
    for each in found[:shown]:
        yield from _one_finding(each, css, lang)
    if shown < len(found):
        more = as_text(_say("more", lang, count=len(found) - shown))
        yield f'<details class="finding {css}"><summary>{more}</summary>'
        for each in found[shown:_MOST_ROWS]:
            yield from _one_finding(each, css, lang)
        yield "</details>"
    if len(found) > _MOST_ROWS:
        yield f"<p>{as_text(_say('more', lang, count=len(found) - _MOST_ROWS))}</p>"


def _one_finding(each: Mapping[str, Any], css: str, lang: str) -> Iterator[str]:
    yield f'<section class="finding {css}"><h3>{as_text(each["says"])}</h3>'
    if each["or"]:
        yield f"<p>{as_text(_alternatives(each, lang))}</p>"
    yield "</section>"


def _missing(absent: Sequence[str], lang: str) -> Iterator[str]:
    if absent:
        yield f"<h2>{as_text(_say('head-missing', lang))}</h2>"
    yield from (f'<section class="finding unknown"><h3>{as_text(each)}</h3></section>' for each in absent)


def _legend(lang: str) -> Iterator[str]:
    yield '<ul class="counts">'
    for letter, css in _TONES.items():
        # The page's policy takes no style of an element's own: paler is a picture.
        square = f'<rect width="10" height="10" fill="var(--tone)" fill-opacity="{_shade(letter)}"/>'
        square = f'<svg width="10" height="10" role="img">{square}</svg>'
        yield f'<li class="{css}"><b class="label">{square}</b> {as_text(_say(f"legend-{letter}", lang))}</li>'
    yield f"<li>□ {as_text(_say('legend-none', lang))}</li>\n</ul>"


def _matrix(document: Mapping[str, Any]) -> Iterator[str]:
    """The matrix as a picture: neighbours of one outcome are one rectangle, so that a large mesh stays a small file."""
    devices, rows = document["devices"], document["matrix"]
    if not rows:
        return
    cell = max(2, min(_LARGEST_CELL_PX, _SIDE_PX // len(rows)))
    side, margin = cell * len(rows), _MARGIN_PX
    whole = side + margin
    yield (f'<svg viewBox="0 0 {whole} {whole}" width="100%" role="img" font-size="{_TEXT_PX}" fill="currentColor">')
    for name, start, count in _spans([device["node"] for device in devices]):
        at = margin + start * cell
        label = as_text(name if len(name) <= 16 else f"{name[:15]}…")
        if count * cell >= _TEXT_PX:
            yield f'<text x="{margin - 4}" y="{at + _TEXT_PX - 1}" text-anchor="end">{label}</text>'
            yield f'<text transform="translate({at + _TEXT_PX - 2} {margin - 4}) rotate(-90)">{label}</text>'
    yield f'<rect x="{margin}" y="{margin}" width="{side}" height="{side}" fill="none" stroke="var(--line)"/>'
    for source, row in enumerate(rows):
        for letter, start, count in _spans(row):
            if letter in _TONES:
                yield _run(document, letter, (source, start, count), cell=cell)
    for _, start, _ in _spans([device["node"] for device in devices]):
        if start and cell > 2:
            at = margin + start * cell
            yield f'<path d="M{margin} {at}h{side}M{at} {margin}v{side}" stroke="var(--bg)" fill="none"/>'
    yield "</svg>"


def _run(document: Mapping[str, Any], letter: str, place: tuple[int, int, int], *, cell: int) -> str:
    """Neighbours in a row with one outcome; what is not well says which devices it is about."""
    source, start, count = place
    x, y = _MARGIN_PX + start * cell, _MARGIN_PX + source * cell
    rect = f'<rect x="{x}" y="{y}" width="{count * cell}" height="{cell}" class="{_TONES[letter]}" fill="var(--tone)"'
    rect += f' fill-opacity="{_shade(letter)}"' if _shade(letter) < 1 else ""
    if letter == "o":
        return rect + "/>"
    devices = document["devices"]
    names = f"{_name(devices[source])} → {_name(devices[start])}"
    names += f" … {_name(devices[start + count - 1])}" if count > 1 else ""
    return f"{rect}><title>{as_text(names)}</title></rect>"


def _shade(letter: str) -> float:
    """How strongly an outcome is drawn in its tone."""
    return 0.35 if letter == "o" else 0.5 if letter in _PALE else 1


def _pings(document: Mapping[str, Any], lang: str) -> Iterator[str]:
    """The line that decided, ping by ping, folded."""
    pings, devices = document["pings"], document["devices"]
    if not pings:
        return
    yield f'<details class="area"><summary>{as_text(_say("head-pings", lang))} '
    yield f'<span class="dim brief">{len(pings)}</span></summary><table><tbody>'
    for each in pings[:_MOST_ROWS]:
        names = f"{_name(devices[each['from']])} → {_name(devices[each['to']])}"
        yield f'<tr><th scope="row">{as_text(names)}</th><td><code>{as_text(each["line"])}</code></td></tr>'
    yield "</tbody></table></details>"


def _spans(values: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Runs of equal values: the value, where it begins, how long it is."""
    start = 0
    for value, members in groupby(values):
        count = sum(1 for _ in members)
        yield value, start, count
        start += count


def _name(device: Mapping[str, Any]) -> str:
    return f"{device['node']}:{device['card']} ({device['ip']})"


def _say(name: str, lang: str, /, **args: object) -> str:
    return say(Message(f"mesh.{name}", args), lang)
