"""gRPC: `server/` hosts an Engine, `client/` is one, `convert/` turns records into messages for both.

Modules beside these are for both ends, too.
"""
