"""What the ports of a server, gRPC and HTTP, have in common."""
