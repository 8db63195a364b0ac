"""Tries to connect to the host and port named in argv and prints one marked JSON line."""

from __future__ import annotations

import json
import socket
import sys

TIMEOUT_S = 3.0


def answer(name: str, port: int) -> dict[str, object]:
    try:
        socket.create_connection((name, port), timeout=TIMEOUT_S).close()
    except socket.gaierror as error:
        return {"listens": False, "why": f"no such name: {error.args[-1]}"}
    except OSError as error:
        return {"listens": False, "why": error.strerror or str(error)}
    return {"listens": True, "why": "accepted"}


print("\nNPUENV-ANSWER " + json.dumps(answer(sys.argv[-2], int(sys.argv[-1]))))
