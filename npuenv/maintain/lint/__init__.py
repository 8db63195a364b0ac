"""What cannot hold together, or will bite, in an upstream checkout: requirements, metadata, Dockerfiles, scripts.

Only what the text decides is complained of: an unset variable, a branch that depends on the machine, or a release the
matrix does not know, gives no complaint. Nothing of the checkout is run. Start from
`lint_paths` in `npuenv.maintain.lint.paths`.
"""
