"""Measurements of a run and of the machine, stage by stage.

A stage is a record: name, seconds, `passed` (true, false, or null if unknown), the reason, and the measured values.
`watch` follows the training, `second_look` holds it against a second opinion; `probes` check the machine before it.
"""
