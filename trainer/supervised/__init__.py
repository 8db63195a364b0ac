"""Supervised learning from right answers: `warm_start` before the first rollout, `sft` as a separate run."""
