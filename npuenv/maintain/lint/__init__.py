"""Finds what conflicts or will fail in an upstream checkout: requirements, metadata, Dockerfiles, scripts.

It complains only of what the text decides: an unset variable, a branch that depends on the machine, or a release that
the matrix does not know gives no finding. Nothing of the checkout is run.
"""
