"""What lies on disk beside the records: `checkpoint` writes and reads a state, `manifest` says which file is the good
one, `resume` decides where a run goes on.
"""
