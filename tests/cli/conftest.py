"""Lets the tests of this folder import what is shared with those of others."""

import sys
from pathlib import Path

FIXTURES = str(Path(__file__).parent.parent / "fixtures")
if FIXTURES not in sys.path:
    sys.path.insert(0, FIXTURES)
