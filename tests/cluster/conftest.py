"""Lets the tests of this folder import what they share, here, in `fixtures` and in `doctor`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for place in (HERE, HERE.parent / "fixtures", HERE.parent / "doctor"):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
