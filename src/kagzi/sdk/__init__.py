"""What users touch: definitions, client, worker, replay. Speaks to an Engine and cannot tell which one it holds."""
