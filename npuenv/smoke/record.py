"""The record of a run on cards that its owner may publish: chip, versions, what ran, and how it ended.

It names no host, user, folder or address: all fields but `failed` come from fixed places, and that one is redacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.core.errors import CannotTell
from npuenv.core.finding import Status
from npuenv.core.messages import Message, say
from npuenv.host.redact import redact_text
from npuenv.matrix.rows.packages import RUN_PACKAGES, RUN_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.checks import Finding
    from npuenv.facts.collect import Facts
    from npuenv.smoke.run import Record


def run_record(
    facts: Facts, records: Sequence[Record], findings: Sequence[Finding], cause: Finding | None, day: str
) -> dict[str, Any]:
    """The record of a run as JSON values. `day`: YYYY-MM-DD.

    Raises CannotTell where the run used no card, or where chip or CANN are not known: others could not use it.
    """
    header = next((record for record in records if record.get("kind") == "header"), {})
    cards = _cards(header)
    if not cards:
        raise CannotTell(Message("smoke.record-without-card"))
    table, cann = facts.npu.smi.value, facts.cann.toolkit.value
    names = {card.name for card in table.cards} if table else set()
    chip = next(iter(names)) if len(names) == 1 else None
    if chip is None or cann is None:
        raise CannotTell(Message("smoke.record-unknown", {"what": "chip" if chip is None else "CANN"}))
    python, driver = facts.python.interpreter.value, facts.npu.driver.value
    installed: Mapping[str, str] = python.distributions if python else {}
    versions = {name: installed[name] for name in RUN_PACKAGES if name in installed}
    if python is not None:
        versions["python"] = ".".join(python.version.split(".")[:2])
    failed = next((each for each in (cause, *findings) if each is not None and each.status is Status.FAIL), None)
    document = {
        "schema": RUN_SCHEMA,
        "chip": chip,
        "cards": cards,
        "cann": cann.version,
        "driver": driver.version if driver else "",
        "packages": versions,
        "what": f"npuenv smoke-train: GRPO of {header.get('backend') or 'a tiny decoder'}",
        "failed": redact_text(say(failed.says, "en")) if failed else "",
        "date": day,
    }
    return document


def _cards(header: Record) -> int:
    """How many cards a run used; 0 on the CPU, and where its header does not say."""
    settings = header.get("settings") or {}
    if "backend" in header:
        return int(settings.get("cards") or 0)
    device = str(header.get("device") or "cpu").partition(":")[0]
    return 0 if device == "cpu" else max(1, int(header.get("ranks") or 1))
