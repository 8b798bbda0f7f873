"""What each mechanism of the PostgreSQL store is worth. See __main__.py."""
