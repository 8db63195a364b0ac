"""How a container of an image is run: the forms of run file (`formats.py`) from one description."""
