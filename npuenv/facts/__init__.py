"""What is true of a host, with evidence. Pure parsers, and `collect` that asks a host; no judgement."""
