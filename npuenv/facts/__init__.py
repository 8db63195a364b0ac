"""What is true of a host, with evidence. Pure parsers, and `collect` that asks a host; no judgement."""

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.conditions import ask, dist_versions

__all__ = ["Evidence", "Fact", "State", "absent", "ask", "dist_versions", "known", "unknown"]
