"""The engine on real stores: memory and a SQLite file."""
