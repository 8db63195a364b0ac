"""Settings spelt as other frameworks spell them: `verl` for verl's dotted names, `device_mapping` for ROLL's cards."""
