"""What is measured, how, and the latest results (in `results/`)."""
