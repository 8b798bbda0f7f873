"""A model of the lease protocol, and a checker that visits all of its states. See docs/model.md."""
