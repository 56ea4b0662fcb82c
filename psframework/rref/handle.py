"""`psf.RRef`: a reference to a value that lives here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from psframework.errors import ArgumentError, ContextClosed
from psframework.rpc.functions.future import Future
from psframework.rpc.functions.remote_stream import RemoteStream
from psframework.rref.ids import RRefId
from psframework.rref.table import Home, Ref, Table
from psframework.rref.user import Fork
from psframework.rref.waiters import fresh


class Calls(Protocol):
    """What references need of the process that they live in."""

    @property
    def table(self) -> Table: ...
    async def fetch(self, rref: RRef, timeout: float | None) -> Any: ...
    async def confirm(self, rref: RRef) -> None: ...
    def call_method(self, rref: RRef, call: MethodCall) -> Future[Any]: ...
    def stream_method(self, rref: RRef, call: MethodCall) -> RemoteStream: ...
    def create_on(self, rref: RRef, call: MethodCall) -> RRef: ...
    def remote(
        self,
        to: Any,
        fn: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> RRef: ...


class MethodCall:
    """A method of a value, with its arguments."""

    __slots__ = ("args", "kwargs", "method", "timeout")

    def __init__(
        self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], timeout: float | None
    ) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.timeout = timeout


class RRef:
    """A reference to a value. The value lives for as long as some process refers to it.

    Made by `cluster.remote` and `cluster.rref`, never directly. May be passed to any member in arguments and
    results, at any depth. Dropping it (`del`, garbage collection, leaving `async with rref:`) is enough.
    """

    __slots__ = ("__weakref__", "_calls", "_ref")

    def __init__(self, calls: Calls, ref: Ref) -> None:
        self._calls = calls
        self._ref = ref

    def __repr__(self) -> str:
        ref = self._ref
        error = ref.entry.error if isinstance(ref, Home) and ref.entry is not None else ref.error
        if ref.dropped:
            state = "closed"
        elif error is not None:
            state = f"failed: {error}"
        elif isinstance(ref, Fork):
            state = ref.state.value
        else:
            state = "local" if ref.entry is not None and ref.entry.is_ready else "creating"
        return f"<RRef {ref.rref} on {self.owner_name()}, {state}>"

    @property
    def id(self) -> RRefId:
        """Name of the value, the same in all processes."""
        return self._ref.rref

    @property
    def ref(self) -> Ref:
        """How this process accounts for it."""
        return self._ref

    @property
    def calls(self) -> Calls:
        """The connection that it belongs to."""
        return self._calls

    @property
    def table(self) -> Table:
        """Where this process accounts for it."""
        return self._calls.table

    def owner_name(self) -> str:
        """Name of the member where the value lives."""
        ref = self._ref
        return ref.owner_name if isinstance(ref, Fork) else self._calls.table.identity.name

    @property
    def owner_incarnation(self) -> int:
        """Which life of that member."""
        ref = self._ref
        return ref.owner if isinstance(ref, Fork) else self._calls.table.identity.incarnation

    def is_owner(self) -> bool:
        """Whether the value lives in this process."""
        return isinstance(self._ref, Home)

    async def confirmed_by_owner(self) -> bool:
        """Waits until the owner has made the value, or knows this reference; returns True.

        Raises:
            PsfError: why it never will: the error of the value's creation, PeerLost if the owner is dead.
        """
        self.table.check_thread()
        self.check()
        await self._calls.confirm(self)
        return True

    async def to_here(self, timeout: float | None = None) -> Any:
        """The value: a copy, or the value itself where it lives.

        Args:
            timeout: seconds, also for its creation if that is under way; None: 60; 0: no limit.

        Raises:
            DeadlineExceeded: not in time; the reference stays good.
            RemoteError: the creation failed; every use raises that.
            PeerLost: the owner is dead.
        """
        self.table.check_thread()
        self.check()
        return await self._calls.fetch(self, timeout)

    def local_value(self) -> Any:
        """The value itself, in the process where it lives.

        While it is still being made a sync remote function, which has a thread, waits for it, for as long as
        its caller does. Enough of them hold all threads, also from what makes the value: an `async def` that
        awaits `to_here` holds none. On the event loop nothing can wait.

        Raises:
            ArgumentError: it lives elsewhere, or is still being made.
        """
        self.check()
        ref = self._ref
        if isinstance(ref, Fork):
            raise ArgumentError(f"the value lives on {ref.owner_name}: `await rref.to_here()` copies it")
        return self._calls.table.local_value(ref)

    def rpc_async(self, timeout: float | None = None) -> RpcProxy:
        """Calls of methods where the value lives: `await rref.rpc_async(timeout=5.0).forward(x)`.

        Returns at once, also while the value is still being made; the call then waits there.
        """
        return RpcProxy(self, timeout)

    def rpc_stream(self, timeout: float | None = None) -> StreamProxy:
        """Calls of methods that are generators; each begins at once, and runs ahead of its consumer a little.

            async for part in rref.rpc_stream().parts(): ...

        Args:
            timeout: seconds that each item may take; None: 60; 0: no limit.
        """
        return StreamProxy(self, timeout)

    def remote(self, timeout: float | None = None) -> RemoteProxy:
        """As `rpc_async`, but the result stays there: `other = rref.remote().method(...)` is an RRef."""
        return RemoteProxy(self, timeout)

    def close(self) -> None:
        """Drops the reference now; later uses raise ContextClosed. Harmless the second time."""
        table = self._calls.table
        if table.is_on_loop:
            table.drop(self._ref)
        else:
            table.drop_later(self._ref)

    def check(self) -> None:
        """Raises what every use raises, if there is something."""
        ref, table = self._ref, self._calls.table
        if ref.error is not None:
            raise fresh(ref.error)
        if table.closed is not None:
            raise ContextClosed(str(table.closed))
        if ref.dropped:
            raise ContextClosed(f"RRef {ref.rref} was closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("an RRef can't be pickled: pass it in the arguments or results of remote calls")

    if not TYPE_CHECKING:  # or mypy would take any attribute for one of an RRef

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                text += f": `await rref.rpc_async().{name}(...)` calls a method of its value"
            raise AttributeError(text, name=name, obj=self)

    def __del__(self) -> None:
        try:
            ref = self._ref
        except AttributeError:  # its making failed
            return
        if not ref.dropped:
            self._calls.table.drop_later(ref)


class _Proxy:
    __slots__ = ("_rref", "_timeout")

    def __init__(self, rref: RRef, timeout: float | None) -> None:
        self._rref = rref
        self._timeout = timeout

    def _call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> MethodCall:
        self._rref.table.check_thread()
        self._rref.check()
        return MethodCall(method, args, kwargs, self._timeout)


def _is_private(proxy: object, method: str) -> None:
    if method.startswith("_"):
        raise AttributeError(f"{type(proxy).__name__} reaches public methods only, not {method!r}")


class RpcProxy(_Proxy):
    """Its methods are those of the value; each returns a psf.Future."""

    __slots__ = ()

    def __getattr__(self, method: str) -> Callable[..., Future[Any]]:
        _is_private(self, method)

        def call(*args: Any, **kwargs: Any) -> Future[Any]:
            rref = self._rref
            return rref._calls.call_method(rref, self._call(method, args, kwargs))

        return call


class StreamProxy(_Proxy):
    """Its methods are those of the value that are generators; each returns an async iterator."""

    __slots__ = ()

    def __getattr__(self, method: str) -> Callable[..., RemoteStream]:
        _is_private(self, method)

        def call(*args: Any, **kwargs: Any) -> RemoteStream:
            rref = self._rref
            return rref._calls.stream_method(rref, self._call(method, args, kwargs))

        return call


class RemoteProxy(_Proxy):
    """Its methods are those of the value; each returns an RRef to its result."""

    __slots__ = ()

    def __getattr__(self, method: str) -> Callable[..., RRef]:
        _is_private(self, method)

        def call(*args: Any, **kwargs: Any) -> RRef:
            rref = self._rref
            return rref._calls.create_on(rref, self._call(method, args, kwargs))

        return call
