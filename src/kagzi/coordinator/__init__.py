"""Background duties. Each is a bounded tick, safe to run in any number of processes at once."""
