import numpy as np

from psframework import backend
from psframework.backend import platforms
from psframework.backend.platforms import HOST


def test_the_host():
    array = np.arange(3.0)
    assert HOST.count() == 1 and HOST.current() == HOST.index_of(array) == 0 and HOST.missing() == ""
    for copied in (HOST.put(array, 0, None), HOST.fetch(array, None), HOST.copy(array, 0, None)):
        assert copied.tolist() == array.tolist() and not np.shares_memory(copied, array)
    HOST.enter(0)()
    assert HOST.pinned_empty((2, 3), np.dtype(np.float16)).shape == (2, 3) and HOST.kernels(array) is None


def test_platforms_by_name_and_by_class():
    class Array:
        pass

    class Derived(Array):
        pass

    class Platform:
        kind = "there"

    platform = Platform()
    assert platforms.platform_of(Array()) is None and platforms.platform_named("there") is None
    backend.register_platform(platform, Array)
    assert platforms.platform_of(Derived()) is platform and platforms.platform_named("there") is platform
    assert "there" in platforms.kinds()
    backend.register_platform(Platform())  # another of the name; the first one's arrays stay its own
    backend.forget_platform(platform)
    assert platforms.platform_of(Derived()) is None and "there" in platforms.kinds()
    backend.forget_platform(platforms.platform_named("there"))
    assert "there" not in platforms.kinds()


def test_fused_kernels_only_on_gpus():
    assert backend.fused(np.ones(1)) is None and backend.fused(3) is None
