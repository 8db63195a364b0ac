"""A compact GRPO trainer whose run is the proof that a training environment works."""
