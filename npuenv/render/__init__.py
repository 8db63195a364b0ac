"""Images, run manifests, launch files and scripts, rendered from resolved stacks and plans."""
