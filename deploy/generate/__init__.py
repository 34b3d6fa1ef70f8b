"""Writes what follows from other files: dashboards, rules for Kubernetes, the metrics reference."""
