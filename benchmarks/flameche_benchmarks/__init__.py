"""Benchmarks against reference implementations and the paper's figures, measured in one run."""
