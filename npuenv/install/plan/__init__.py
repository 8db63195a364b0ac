"""Plans: steps with actions and conditions, as pure data."""
