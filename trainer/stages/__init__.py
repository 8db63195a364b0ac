"""What a run measures of itself and of the machine, stage by stage.

A stage is a record: name, seconds, `passed` (true, false, or null where it could not be told), the reason, and what
was measured. `watch` follows the training; `probes` ask the machine before it.
"""
