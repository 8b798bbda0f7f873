"""The Store contract for one principal, in the roles of stores/base."""
