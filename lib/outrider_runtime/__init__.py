"""How an Outrider process lives: settings, logs, metrics, gRPC, life cycle and time.

Knows nothing of what the services are for: no words of speculation, no tensors. Every module here
is used by at least two services; code used once belongs to its user.
"""

__version__ = "0.1.0"
