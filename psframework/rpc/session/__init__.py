"""One session with each peer: connections that may break, calls, lanes, bulk payloads."""
