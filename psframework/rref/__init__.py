"""Values held elsewhere: remote references whose owner knows who holds them, also when holders crash.

`ids`, `messages`, `holds`, `owner`, `user` and `account` are pure: what happened goes in, what to do comes
out.
"""
