"""What the command lines share: log formats, and safe error messages."""
