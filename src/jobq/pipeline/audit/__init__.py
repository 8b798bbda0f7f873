"""The audit: proves from the lake that no event is missing and that every job follows the rules."""
