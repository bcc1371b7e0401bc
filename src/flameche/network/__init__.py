"""Clustered federated learning between real nodes: a server, one node per client, any transport."""
