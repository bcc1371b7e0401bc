"""Experiments: one frozen description per run, where its results lie, and how they are made."""
