"""What all other packages speak: errors, facts, messages, plans, versions, and readers of text and files."""
