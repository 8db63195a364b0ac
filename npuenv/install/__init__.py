"""Installs a resolved stack into an environment on disk: plan, execution, verification, activation."""
