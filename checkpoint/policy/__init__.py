"""What of the tables a checkpoint writes: what changed, what a byte costs, and what follows; pure, needs no torch."""
