"""The worker: one model replica that executes plans. It never tokenises and never plans."""
