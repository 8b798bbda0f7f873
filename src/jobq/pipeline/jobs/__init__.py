"""The steps behind the commands. Each reads, transforms and writes tables of the lake."""
