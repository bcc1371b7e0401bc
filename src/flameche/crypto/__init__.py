"""Schemes under which vectors can be added without being read."""
