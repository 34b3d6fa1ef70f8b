"""Text and tokens, both ways. Pure: no I/O, no clock, no chance, no wire."""
