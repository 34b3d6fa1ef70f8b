"""Who may ask for how much: API keys, their limits, and the line in front of the workers."""
