"""npuenv: from a bare Ascend NPU host to a proven training environment."""

__version__ = "0.1.0"
