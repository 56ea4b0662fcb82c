import pytest

from psframework.testing.c_translator import translate

TYPES = "typedef float T; typedef float C;\n"


def run(body, **values):
    """What a function of integers and floats returns."""
    parameters = ", ".join(f"{'int' if type(v) is int else 'float'} {name}" for name, v in values.items())
    scope = {}
    exec(translate(f"__device__ float f({parameters}) {{ {body} }}", TYPES, frozenset({"sqrt"})), scope)
    generator = scope["f"](None, **values)
    with pytest.raises(StopIteration) as end:
        next(generator)
    return end.value.value


def test_integers_divide_as_in_c():
    assert run("return i / 2;", i=7) == 3 and run("return x / 2;", x=7.0) == 3.5
    assert run("return (float)i / 2;", i=7) == 3.5 and run("return (int)x / 2;", x=7.9) == 3
    assert run("int j = i / 2 + i % 4; return j / (i > 0 ? 2 : 3);", i=7) == 3
    assert run("return 1 / x;", x=4.0) == 0.25 and run("return (i + 1) / (float)i;", i=2) == 1.5


def test_statements():
    assert (
        run(
            "float s = 0; for (int j = 0; j < i; j += 1) { if (j == 1) s += 10; else s += j; } return s;", i=4
        )
        == 15
    )
    assert run("float s = 1.5f; for (int j = i; j > 0; j >>= 1) s *= 2; return s;", i=5) == 12
    assert run("return i > 2 && x < 1 || !i ? -x : x;", i=3, x=0.5) == -0.5
    assert run("{ float y; y = x; return y; }  // a comment\n", x=2.0) == 2


def test_threads_meet_where_the_source_says_so():
    source = """
    __device__ C both(C v) { return v + __shfl_xor_sync(0xffffffffu, v, 1); }
    extern "C" __global__ void k(T* x) { __syncthreads(); x[threadIdx.x] = both(x[threadIdx.x]); }
    """
    text = translate(source, TYPES, frozenset())
    assert (
        "(yield ('sync', None))" in text
        and "(yield ('shuffle', v, 1))" in text
        and "yield from both(_," in text
    )


@pytest.mark.parametrize("body", ["while (1) {}", "return unknown(x);", "switch (1) {}", "return *&x;"])
def test_what_kernels_do_not_use_is_refused(body):
    with pytest.raises((NotImplementedError, SyntaxError)):
        run(body, x=1.0)
