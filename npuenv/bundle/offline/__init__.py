"""Everything that a machine without a network needs for one stack, in one folder or archive.

Writing: `make.gather` finds out what goes in and how large it is, `make.make_bundle` fetches and writes it. Reading:
`opened.open_bundle` gives the parts of a bundle after every byte was compared with its manifest.
"""
