"""Contribute, add, absorb: how clients and a server that only adds talk."""
