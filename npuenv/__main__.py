"""`python -m npuenv`."""

from npuenv.cli import main

main()
