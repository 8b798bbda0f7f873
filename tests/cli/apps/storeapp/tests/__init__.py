raise RuntimeError("a worker imports no tests")
