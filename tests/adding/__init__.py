"""CONTRIBUTING says how to add something: these tests do what it says, in a copy of the repository.

A section of CONTRIBUTING consists of prose, of changes (```` ```diff title="file" ````) and of
commands (```` ```console ````). `guide.py` reads them, and `copy.py` makes the changes and runs
the commands and tests. So a step that is missing there fails here, and so does a place that does
not follow from the others.
"""
