"""Kagzi beside its peers: the same workloads, on the same machine, in the same run.

`python -m benchmarks` measures and prints the table; `python -m benchmarks.growth` looks at how cost
grows with the size of the tables. Neither is part of the test suite. README.md says what is measured.
"""
