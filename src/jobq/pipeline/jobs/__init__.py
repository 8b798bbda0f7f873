"""What the commands do: read → transform → write."""
