"""The client: `remote.RemoteEngine` is an Engine whose work is done by a server."""
