"""The scripts that run one workload on one system, each in a process and an environment of its own."""
