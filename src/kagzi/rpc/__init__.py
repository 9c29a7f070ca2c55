"""gRPC: `server` hosts an Engine, `remote` is an Engine. Only `convert` and `status` know both protobuf and core."""
