"""Deciding. Pure: no I/O, no clock, no asyncio. What happens and what time it is come in as
arguments, and what is to be done goes out as values."""
