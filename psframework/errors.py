"""Every exception that psframework raises on purpose.

PsfError
├── ArgumentError          (ValueError)   a call that can't be right; the caller's fault
├── ConfigurationError     (ValueError)   flags, environment, psf.toml or certificates that don't fit
│   └── AddressInUse       (OSError)      the port to bind is taken
├── AutogradError          (RuntimeError) the graph can't be differentiated as asked
├── DeadlineExceeded       (TimeoutError) the deadline passed; the work may still have been done
├── PeerLost               (ConnectionError) a peer died, was cut off or is another incarnation
├── RemoteError                           code of the user raised on the other side
├── NotRegistered          (LookupError)  nobody registered a function or service of that name
├── NameTaken                             a live member already holds the name
├── UnknownTable           (LookupError)  the shard holds no such model or table
├── ModelMismatch          (ValueError)   another shape, dtype, rule or policy is registered
├── ResourceExhausted                     the receiver is full; try again after `.retry_after`
├── PermissionDenied                      wrong certificate, role or token
├── Evicted                               this member's lease ran out; it must join again
├── RolledBack                            state went back to an older step
├── StaleTerm                             a message of an older leader or configuration
├── ContextMismatch, ContextClosed        distributed autograd
├── PartialFailure                        some owners of parameters did it, others did not
├── CollectiveMismatch                    ranks disagree about a collective
├── RendezvousTimeout      (TimeoutError) some members never came
├── CheckpointError        (ValueError)   a file that is damaged, incomplete or of another kind
└── WireError              (ValueError)   bytes that are not what the protocol says
"""

from __future__ import annotations

from collections.abc import Sequence


class PsfError(Exception):
    """Root of the tree; catching it catches everything that psframework raises on purpose.

    Attributes:
        untouched: for errors that a peer answered: whether it took over nothing of what the call brought, so
            that its function surely did not start. None for errors that were raised here.
    """

    untouched: bool | None = None


class ArgumentError(PsfError, ValueError):
    """A call that can't be right: the caller's fault."""


class ConfigurationError(PsfError, ValueError):
    """Flags, environment, `psf.toml` or certificates that don't fit together."""


class AddressInUse(ConfigurationError, OSError):
    """The address to bind is taken by another process."""


class AutogradError(PsfError, RuntimeError):
    """The graph can't be differentiated as asked; the message names the operation and the fix."""


class DeadlineExceeded(PsfError, TimeoutError):
    """The deadline passed. The remote work was cancelled, but may have been done."""


class PeerLost(PsfError, ConnectionError):
    """A peer died, was cut off, or came back as another incarnation.

    Attributes:
        peer: name of the peer.
        reason: "closed", "lease", "stalled", "refused", "incarnation" or "cancelled".
        may_have_run: False if the request surely never started on the peer.
        rank: of the peer, where it was lost as a member of a process group; else None.
    """

    def __init__(
        self,
        message: str,
        *,
        peer: str = "",
        reason: str = "closed",
        may_have_run: bool = True,
        rank: int | None = None,
    ):
        super().__init__(message)
        self.peer = peer
        self.reason = reason
        self.may_have_run = may_have_run
        self.rank = rank


class RemoteError(PsfError):
    """Code on the other side raised.

    Attributes:
        type_name: qualified name of the remote exception's class.
        message: its text.
        remote_traceback: its formatted traceback, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", remote_traceback: str = ""):
        super().__init__(f"{type_name}: {message}" if type_name else message)
        self.type_name = type_name
        self.message = message
        self.remote_traceback = remote_traceback


class NotRegistered(PsfError, LookupError):
    """Nobody registered a function or service of that name; the message lists near names."""


class NameTaken(PsfError):
    """A live member already holds the name; the message names the holder."""


class UnknownTable(PsfError, LookupError):
    """The shard holds no such model or table: register it first."""


class ModelMismatch(PsfError, ValueError):
    """Another shape, dtype, update rule or policy is registered under the name."""


class ResourceExhausted(PsfError):
    """The receiver has no room for this request.

    Attributes:
        retry_after: seconds after which a retry is sensible; 0 if a retry can't help.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0):
        super().__init__(message)
        self.retry_after = retry_after


class PermissionDenied(PsfError):
    """The caller's certificate, role or token does not allow the call."""


class Evicted(PsfError):
    """This member's lease ran out, or it was fenced: it must join again."""


class RolledBack(PsfError):
    """The server's state went back to an older step.

    Attributes:
        step: the step to continue from.
    """

    def __init__(self, message: str, *, step: int = 0):
        super().__init__(message)
        self.step = step


class StaleTerm(PsfError):
    """A message of an older term, configuration or roster."""


class ContextMismatch(PsfError):
    """A tensor of another distributed-autograd context."""


class ContextClosed(PsfError):
    """The distributed-autograd context is closed or poisoned."""


class PartialFailure(PsfError):
    """Several members were to do something, and some did not; the message says why.

    Attributes:
        failed: names of those that did not, or did not say so.
        done: names of those that did.
    """

    def __init__(self, message: str, *, failed: Sequence[str] = (), done: Sequence[str] = ()):
        super().__init__(message)
        self.failed = tuple(failed)
        self.done = tuple(done)


class CollectiveMismatch(PsfError):
    """Ranks disagree about a collective; the message names ranks and both descriptors."""


class RendezvousTimeout(PsfError, TimeoutError):
    """Some members never came.

    Attributes:
        missing: their names, as far as they are known.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = ()):
        super().__init__(message)
        self.missing = tuple(missing)


class CheckpointError(PsfError, ValueError):
    """A checkpoint or model file that is damaged, incomplete or of another kind."""


class WireError(PsfError, ValueError):
    """Bytes that are not what the protocol says."""
