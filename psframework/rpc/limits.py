"""What an agent allows its peers: windows, sizes, times. One frozen value, handed down."""

from __future__ import annotations

from dataclasses import dataclass, field

from psframework.wire.lanes import STRIPES, Lane, offered, sockets_wanted

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Limits of an agent.

    Args:
        lanes: lanes to offer; default what PSF_LANES says, else all of this machine.
        window_bytes: bytes of calls that one peer may have on the way to us, handlers included; those of an
            async function only until it begins.
        max_payload_bytes: largest payload of one call that we accept.
        stripes: streams that carry bulk payload between two peers.
        resume_seconds: how long a broken connection is redialled before the peer counts as lost.
        handshake_seconds: how long a new connection may take until it is accepted or refused.
        segment_bytes: most shared memory that one peer's payloads may take here; 0 keeps payloads out of it.
        device_bytes: most memory of GPUs that one peer's payloads may take here; 0 keeps payloads out of it.
        backlog_bytes: what calls that were sent without waiting may keep here until they are answered; and
            what results may, until a peer that asked for them takes them.
        sockets: whether connections move from gRPC to TCP sockets of their own, where that can be; default
            yes, unless PSF_SOCKETS is 0.
        segment_directory: where the Unix socket for segments goes; default PSF_SHM_DIR.
    """

    lanes: frozenset[Lane] = field(default_factory=offered)
    window_bytes: int = 128 * MIB
    max_payload_bytes: int = 8192 * MIB
    stripes: int = STRIPES
    resume_seconds: float = 1.0
    handshake_seconds: float = 10.0
    segment_bytes: int = 512 * MIB
    device_bytes: int = 1024 * MIB
    backlog_bytes: int = 1024 * MIB
    sockets: bool = field(default_factory=sockets_wanted)
    segment_directory: str | None = None
