"""A simulation of a large Cluster, with measured costs."""
