"""Benchmarks of jobq and other job queues, interleaved in one run. See bench/README.md."""
