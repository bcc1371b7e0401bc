"""What relies on Flower's internals to save time: forked processes, and shorter polling intervals.

Flower starts a Python process for every message and polls every three seconds. Where a version of Flower does
not fit this code, Flower's own behaviour stays.
"""
