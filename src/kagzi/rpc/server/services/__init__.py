"""What each service of the wire does with an Engine: a file for each. Methods are named like their RPCs."""
