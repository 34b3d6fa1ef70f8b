"""Writes what follows from other files of `deploy`: dashboards, and Kubernetes' form of rules."""
