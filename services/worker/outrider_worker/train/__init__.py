"""Training a drafter on the target's own answers. Nothing that serves imports this."""
