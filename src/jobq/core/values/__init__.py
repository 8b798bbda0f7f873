"""Values of users: checks, codecs, ids, and how people read and write them."""
