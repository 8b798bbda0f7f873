"""Pure logic: records, states and rules. No I/O, no asyncio, no clock reads."""
