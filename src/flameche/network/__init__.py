"""FLAMECHE between real nodes: each plays its own part of a method, a server relays and adds."""
