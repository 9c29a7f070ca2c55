"""The Engine contract: protocols and frozen records. Client, worker, CLI and tests speak only this."""
