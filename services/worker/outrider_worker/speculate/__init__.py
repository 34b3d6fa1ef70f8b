"""Drafting, picking the rows to verify, and judging them."""
