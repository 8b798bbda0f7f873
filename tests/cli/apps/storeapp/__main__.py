raise RuntimeError("a worker imports no program")
