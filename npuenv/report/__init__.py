"""Values turned into what people and programs read: one module for each kind of result."""
