"""Lets the tests of this folder import the scripted host, the stub CANN and the families of facts."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (str(HERE.parent / "fixtures"), str(HERE)):
    if folder not in sys.path:
        sys.path.insert(0, folder)
