"""The judge's tests share `smoke_cases`, and what starts on the real torch_npu the stub CANN."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (str(HERE), str(HERE.parent / "fixtures")):
    if folder not in sys.path:
        sys.path.insert(0, folder)
