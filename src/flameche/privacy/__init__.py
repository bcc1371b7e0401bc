"""What opened sums give away: the guard that limits it, and the audit that counts it."""
