"""Every stored and sent format, byte by byte, as it was recorded."""
