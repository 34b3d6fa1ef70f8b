"""The engine beside others: the same prompts, weights, dtype and threads, in turns."""
