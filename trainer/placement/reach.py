"""Helpers for Ray: its variables, its errors in one line, whether an address responds."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of a Ray that a run starts. On a busy node agents take long to come, and a raylet that does not see its agent ends
# itself. A node that is gone is to be known within three quarters of a minute, and one whose link is down for twenty
# seconds is not gone.
OWN: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "6",
}


def one_line(error: BaseException, longest: int = 400) -> str:
    """Example: `ConnectionError: ray client connection timeout`."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:longest]}{'...' if len(text) > longest else ''}"


def answers(address: str, limit_s: float) -> str | None:
    """Why nothing answers at `HOST:PORT`; None where something does."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return f"{address!r} is no HOST:PORT"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=limit_s):
            return None
    except TimeoutError:
        return f"nothing answered within {limit_s:g} s"
    except socket.gaierror:
        return f"the name {host} is not known here"
    except (OSError, OverflowError) as error:
        return f"the connection failed ({getattr(error, 'strerror', None) or error})"


# A process whose node may be about to be found gone; more is known a little later.
OUT_OF_REACH = "cannot be reached"
# Parts of Ray's messages about a lost actor, and their meaning; the first match counts.
_LOSSES = (
    ("temporarily unavailable", OUT_OF_REACH),
    ("ray.kill", "was ended"),
    ("SIGKILL", "was killed by SIGKILL"),
    ("out of memory", "was killed because memory ran out"),
    ("node has died", "was lost with its node"),
    ("node was terminated", "was lost with its node"),
    ("node died", "was lost with its node"),
    ("connection error code 2", "was killed"),
    ("End of file", "was killed"),
)


def how_lost(error: BaseException) -> str:
    """Ray's reason for the loss of an actor, in short. Example: `was killed`."""
    text = " ".join(str(error).split())
    return next((meaning for words, meaning in _LOSSES if words in text), f"was lost ({text[:300]})")
