"""Files to carry to another machine: the doctor in one file (`zipapp.build`), and bundles for offline installation."""
