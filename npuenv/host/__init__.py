"""The interface to a machine: the only package that runs programs or touches files of a host."""
