"""How a container of an image is run: docker, compose, Kubernetes, Slurm and Apptainer from one description.

`description.describe` makes the description, `formats.render_container` the texts.
"""
