"""Calls between members: sessions over gRPC streams, lanes for bulk data, security, and the life of a server."""

import os

# Before gRPC is first imported: at its default level the core reports every orderly goodbye of a peer.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
