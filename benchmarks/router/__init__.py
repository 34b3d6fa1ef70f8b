"""What the router costs: `python -m benchmarks router`, described in README.md."""
