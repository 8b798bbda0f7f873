"""What the command lines share: how they log, and what they may print."""
