"""What only this project's own people run: lint of upstream, refresh and check of the matrix, the grid of locks."""
