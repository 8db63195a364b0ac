"""How a container of an image is run: docker, compose, Kubernetes, Slurm and Apptainer from one description."""
