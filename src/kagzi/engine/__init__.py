"""LocalEngine: the Engine contract over a Store. The rules of the system exist here and nowhere else."""
