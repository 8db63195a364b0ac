"""Bundles: everything that a machine without a network needs for one stack, in one folder or archive.

Writing: `make.gather` determines content and size, `make.make_bundle` fetches and writes it. Reading:
`reader.open_bundle` returns the parts of a bundle after comparing every byte with its manifest.
"""
