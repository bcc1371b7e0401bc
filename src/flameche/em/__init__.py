"""Expectation-maximization over metadata: pure numpy functions of terms and of sums."""
