"""The smoke test: runs the packaged trainer in a target environment, reads its records and judges them.

The trainer only measures. `judge` turns its records into findings; the worst one is the verdict. `cause` selects the
finding that explains the others. What the records lack is unknown, not fine.
"""
