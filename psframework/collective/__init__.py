"""Process groups: collectives between the ranks of a group, over shared memory, the network or NCCL."""
