"""Determines the files of a bundle that come from indexes: their origins and names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.bundle.offline.fetch import Download
from npuenv.bundle.offline.listing import best, list_files
from npuenv.core.errors import NothingFits
from npuenv.core.messages import Message
from npuenv.lock.wheels import wheels_in_links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.bundle.offline.listing import Offer
    from npuenv.bundle.offline.self_package import Tool
    from npuenv.bundle.offline.sources import Found
    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Platform


@dataclass(frozen=True, slots=True)
class Item:
    """One file from an index, and its purpose."""

    kind: str  # as in manifest.FileRow
    name: str
    version: str
    wanted: Download

    def of_size(self, size: int) -> Item:
        """The same with its size."""
        return replace(self, wanted=replace(self.wanted, size=size))


def lock_items(lock: Lock, platform: Platform, resolver: Resolver) -> tuple[Item, ...]:
    """One file for each package of a lock: the wheel that fits its platform best, else the source.

    The lock knows the hash of each. Raises: CannotTell if an index is unreachable, NothingFits for a package without
    such a file on any index.
    """
    labelled = [(package.name, package.version) for package in lock.packages if package.index]
    in_links = wheels_in_links(resolver.host, resolver.settings, labelled, platform)
    groups: dict[tuple[str | None, bool], list[LockedPackage]] = {}
    for package in lock.packages:
        groups.setdefault((package.index, package.index is not None and package.name in in_links), []).append(package)
    items: list[Item] = []
    for (label, is_in_links), packages in groups.items():
        pins = [f"{package.name}=={package.version}" for package in packages]
        listed = list_files(pins, platform, resolver, label=label, is_in_links=is_in_links)
        offers = {row.name: row.offers for row in listed}
        for package in packages:
            chosen = best(offers.get(package.name, ()), platform, package.sha256)
            if chosen is None:
                args = {"name": package.name, "version": package.version, "hashes": package.sha256}
                raise NothingFits(Message("bundle.no-such-hash", args), Message("bundle.not-offered-hint"))
            wanted = Download(f"wheels/{chosen.file}", chosen.url, package.sha256, chosen.size)
            items.append(Item("wheel" if chosen.is_wheel else "sdist", package.name, package.version, wanted))
    return tuple(items)


def tool_items(tools: Sequence[Tool]) -> tuple[Item, ...]:
    """The files for npuenv's own environment."""
    return tuple(_item("tool", tool.name, tool.version, f"tools/{tool.offer.file}", tool.offer) for tool in tools)


def source_item(found: Found) -> tuple[Item, ...]:
    """The sdist that replaces a repository; empty for a source from elsewhere."""
    version = found.source.ref.removeprefix("v")
    return (_item("source", found.row.name, version, found.path, found.offer),) if found.offer else ()


def hashes_of(offer: Offer) -> tuple[str, ...]:
    """The hash that an index states, as the only allowed one; empty if it states none."""
    return (offer.sha256,) if offer.sha256 else ()


def _item(kind: str, name: str, version: str, path: str, offer: Offer) -> Item:
    return Item(kind, name, version, Download(path, offer.url, hashes_of(offer), offer.size))
