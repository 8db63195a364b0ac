"""A reward that differs between the answers of a model without training: the share of low letters."""

from __future__ import annotations


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """The share of letters below P."""
    return sum(letter < "P" for letter in solution_str) / max(len(solution_str), 1)
