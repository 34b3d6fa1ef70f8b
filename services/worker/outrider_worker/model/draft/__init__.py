"""Small networks that draft for a target: they read its hidden states and share its tables."""
