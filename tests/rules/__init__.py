"""Every rule of core against every store: a real store plays random scripts, and core says what
must come out.
"""
