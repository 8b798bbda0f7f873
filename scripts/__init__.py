"""Checks, generators and helpers of this repository; not part of the library."""
