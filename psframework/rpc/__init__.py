"""Calls between members: sessions over gRPC streams, lanes for bulk data, security, the life of a server."""
