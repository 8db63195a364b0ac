"""From a resolved stack to an environment on disk: the plan, its execution, verification, activation."""
