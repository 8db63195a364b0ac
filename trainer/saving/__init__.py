"""Checkpoints: `checkpoint` writes and reads a state, `manifest` names the valid file, `resume` decides where a run
resumes.
"""
