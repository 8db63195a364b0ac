"""Prints the blocks that `.ci/run` has run; for those that took 1.5 times their budget, the slowest tests too."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TOO_SLOW = 1.5
SHOWN = 10


def slowest(path: Path) -> list[tuple[float, str]]:
    """Seconds and name of the slowest tests of a block, from the XML that pytest wrote; none where no test ran."""
    if not path.is_file():
        return []
    cases = ElementTree.parse(path).iter("testcase")
    timed = ((float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases)
    return sorted(timed, reverse=True)[:SHOWN]


def main(table: Path) -> None:
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    print("\n   took  budget  block")
    for took, budget, _, name in rows:
        print(f"{took:>5} s {budget:>5} s  {name}")
    for took, budget, xml, name in rows:
        if int(took) >= TOO_SLOW * int(budget):
            print(f"TOO SLOW: {name}: {took} s of {budget} s")
            for seconds, test in slowest(Path(xml)):
                print(f"  {seconds:7.1f} s  {test}")


main(Path(sys.argv[1]))
