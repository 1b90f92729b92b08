"""Reading what people write, and what Encamp itself offers."""
