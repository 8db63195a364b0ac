"""The page beside the locks, and what is said about verified ones."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from npuenv.core.messages import Message, say
from npuenv.lock.checking import Availability, VerifiedPackage
from npuenv.lock.file import Lock, LockedPackage, Missing, Proof
from npuenv.maintain.lock_all import GridRow
from npuenv.matrix import load_matrix
from npuenv.report.shelf import ShelfRow, shelf_json, shelf_page, shelf_rows, show_shelf, show_verified, verified_json
from npuenv.resolve import published_requests, resolve
from npuenv.resolve.types import Request
from tests.support.sentences import says, sentence

TAG = "x86_64-cp311-glibc2.28"
WHOLE = Lock("tiny", TAG, "npuenv 1", (LockedPackage("base", "1.0", ("a" * 64,)),))
HALF = replace(
    WHOLE,
    stack="half",
    packages=(LockedPackage("torx", "9.1", (), "special"),),
    missing=(Missing("torx", "9.1", "index-out-of-reach", "special"),),
)
PROOF = (Proof("base>=7", "upper 1.0 (Requires-Dist)"), Proof("base<2|x", "half"))
PROOF_SAYS = ["base>=7 (required by upper 1.0 (Requires-Dist))", "base<2|x (required by half)"]


LACKS = sentence("lock.lacks-index-out-of-reach", name="torx", version="9.1", index="special")


def refused(status: str = "impossible", proof: tuple[Proof, ...] = PROOF) -> GridRow:
    return GridRow("cpu", TAG, None, status, 0, (), proof, 0.0, False, "words")


def test_locks_of_no_published_stack_are_rows_of_their_own() -> None:
    rows = shelf_rows((), (WHOLE, HALF))
    assert [(row.stack, row.status, row.num_packages) for row in rows] == [
        ("half", "partial", 1), ("tiny", "complete", 1),
    ]  # fmt: skip
    assert [say(why) for why in rows[0].why] == [LACKS]


def test_hardware_that_shares_a_lock_shares_a_row_and_conflicts_say_why() -> None:
    matrix = load_matrix()
    asked = [
        (request, resolve(request, matrix))
        for request in published_requests(matrix)
        if request.stack in ("cpu", "verl-950")
    ]
    name, tag = "verl-0.7.1-cann8.5.0", "aarch64-cp311-glibc2.28"
    for hardware in ("a2", "a3"):
        request = Request(stack=name, arch="aarch64", hardware=hardware)
        asked.append((request, resolve(request, matrix)))
    rows = {(row.stack, row.platform): row for row in shelf_rows(asked, [replace(WHOLE, stack=name, platform=tag)])}
    assert (rows[name, tag].hardware, rows[name, tag].status) == (("a2", "a3"), "complete")
    assert rows["cpu", TAG].status == "absent"
    conflict = rows["verl-950", "x86_64"]
    assert conflict.status == "impossible" and says(
        say(conflict.why[0]), "resolve.stack-lacks", lacks="cann, torch-npu"
    )


def test_a_stack_that_was_proved_impossible_shows_its_proof_and_not_an_old_lock() -> None:
    request = Request(stack="cpu", arch="x86_64", python="3.11")
    asked = [(request, resolve(request, load_matrix()))]
    old = replace(WHOLE, stack="cpu")
    assert [say(why) for why in shelf_rows(asked, [old], [refused()])[0].why] == PROOF_SAYS
    without = shelf_rows(asked, [old], [refused(proof=())])[0]
    assert (without.status, [say(why) for why in without.why]) == ("impossible", ["words"])
    assert shelf_rows(asked, [old], [refused(status="complete")])[0].status == "complete"


def test_the_page_counts_every_row_and_keeps_tables_whole() -> None:
    impossible = replace(
        WHOLE, stack="clash", packages=(), missing=(Missing("*", "", "does-not-resolve"),), proof=PROOF
    )
    absent = ShelfRow("later", TAG, ("a2", "a3"), "absent", 0, ())
    rows = (*shelf_rows((), (WHOLE, HALF, impossible)), absent)
    page = shelf_page(rows)
    assert says(page, "lock.page-head", all=4, complete=1, partial=1, impossible=1, absent=1)
    assert f"| clash | {TAG} | - | {'; '.join(PROOF_SAYS)} |".replace("<2|x", "<2\\|x") in page
    assert f"| tiny | {TAG} | - | 1 |" in page and f"| later | {TAG} | a2, a3 |" in page
    assert page == shelf_page(rows) and "://" not in page
    assert len(page.splitlines()) == len(shelf_page(rows, "zh").splitlines())


def test_a_status_without_rows_has_no_table() -> None:
    assert "## Impossible" not in shelf_page(shelf_rows((), (WHOLE,)))


def test_the_table_and_the_json_say_the_same() -> None:
    rows, text = shelf_rows((), (WHOLE, HALF)), io.StringIO()
    show_shelf(rows, Console(file=text, width=200), "en")
    assert LACKS in text.getvalue()
    assert say(Message("lock.shelf-count", {"all": 2, "complete": 1, "partial": 1, "impossible": 0, "absent": 0})) in (
        text.getvalue()
    )
    assert [row["status"] for row in shelf_json(rows, "zh")] == ["partial", "complete"]


def test_verified_locks_are_counted_apart_by_status() -> None:
    found = [
        (WHOLE, (VerifiedPackage("base", "1.0", Availability.CHANGED, None, ("a" * 64,)),)),
        (HALF, (VerifiedPackage("torx", "9.1", Availability.NO_HASH, "special"),)),
    ]
    text = io.StringIO()
    show_verified(found, Console(file=text, width=200), "en")
    assert says(text.getvalue(), "lock.offer-changed", name="base", version="1.0", detail="a" * 64)
    for status, whole in (("complete", 0), ("partial", 1)):
        assert says(text.getvalue(), "lock.verified-count", status=status, count=1, whole=whole)
    assert verified_json(found)[0]["counts"] == {
        "there": 0, "changed": 1, "yanked": 0, "gone": 0, "out-of-reach": 0, "no-hash": 0,
    }  # fmt: skip
