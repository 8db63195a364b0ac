"""Learning from right answers: `warm_start` before the first rollout, `sft` as a run of its own."""
