"""Messages of the wire into records of core and api, and back: one file for each side of the contract."""
