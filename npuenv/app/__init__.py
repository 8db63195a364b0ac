"""What the command line and the doctor's single file share: the standard library alone, and rich where text is drawn.

Start from `ending.run_to_code`, a command line to its exit code, and `doctor.run_doctor`, one look at a machine.
"""
