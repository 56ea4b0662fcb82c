import contextvars
import threading

from psframework.backend import scopes


def test_what_was_entered_follows_into_another_thread():
    log = []

    def enter(name):
        def undo():
            log.append((f"leave {name}", threading.get_ident()))

        def entering():
            log.append((f"enter {name}", threading.get_ident()))
            return undo

        return entering

    scopes.push("cuda", 1, enter("device"))
    scopes.push("cuda", 1, enter("stream"))
    context, here = contextvars.copy_context(), threading.get_ident()
    other = threading.Thread(target=lambda: context.run(scopes.follow, log.append, ("work", 0)))
    other.start()
    there = other.ident
    other.join()
    assert scopes.innermost().number == 1
    scopes.pop()
    scopes.pop()
    assert scopes.innermost() is None
    assert log == [
        ("enter device", here), ("enter stream", here),
        ("enter device", there), ("enter stream", there), ("work", 0),
        ("leave stream", there), ("leave device", there),
        ("leave stream", here), ("leave device", here),
    ]  # fmt: skip


def test_nothing_entered_costs_nothing():
    assert scopes.follow(lambda a, b=0: (a, b), 1, b=2) == (1, 2)
