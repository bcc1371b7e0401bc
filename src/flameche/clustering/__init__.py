"""From metadata to clusters, by exchanges of sums; nothing here knows of models."""
