"""Does anything grow with the size of a store? See __main__.py."""
