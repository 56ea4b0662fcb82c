from psframework import backend


def test_the_cpu_needs_no_branch():
    stream, called = backend.stream("cpu"), []
    with stream as entered:
        assert entered is stream
        event = stream.record()
        stream.wait(event)
    stream.synchronize()
    event.synchronize()
    stream.when_done(lambda: called.append(1))
    assert stream.done and event.done and called == [1]


def test_the_cpu_waits_for_another_device():
    class Event:
        done = False

        def synchronize(self):
            self.done = True

    event = Event()
    backend.stream("cpu").wait(event)
    assert event.done
