"""Pure logic: values, records, policies and rules. No I/O, no asyncio, no clock reads."""
