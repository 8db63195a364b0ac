"""What is true of a host, with evidence. Pure parsers, and `collect` that asks a host; no judgement."""

from npuenv.facts.ask import ask, dist_versions
from npuenv.facts.base import Evidence, Fact, State, absent, known, unknown

__all__ = ["Evidence", "Fact", "State", "absent", "ask", "dist_versions", "known", "unknown"]
