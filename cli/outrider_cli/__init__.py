"""The `outrider` command: starts the services, alone or together, and fetches models.

Knows how processes are started and watched and which setting each flag stands for; knows nothing of
HTTP routes, plans or tensors. Services are imported lazily, so the command works with any of the
extras installed.
"""
