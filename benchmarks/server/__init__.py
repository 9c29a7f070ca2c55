"""What `kagzi server` may cost: idle workers, sleepers that wake together, memory over many runs."""
