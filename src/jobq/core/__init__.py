"""Pure logic: records, states, decisions. No I/O, no asyncio, no clock reads."""
