"""Which workers there are, and which of them gets a request."""
