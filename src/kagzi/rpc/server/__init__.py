"""The server: `server.RpcServer` hosts an Engine, `services/` answers its calls."""
