"""How a container of an image is run: docker, compose, Kubernetes, Slurm and Apptainer from one description.

`describe` makes the description, `render_container` the texts, `write_files` puts them into a folder.
"""

from __future__ import annotations

from npuenv.render.container.description import Container as Container
from npuenv.render.container.description import Wish as Wish
from npuenv.render.container.description import describe as describe
from npuenv.render.container.forms import FORMS as FORMS
from npuenv.render.container.forms import render_container as render_container
from npuenv.render.container.writing import write_files as write_files
