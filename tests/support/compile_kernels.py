"""Compiles every fused kernel by NVRTC, for every dtype: needs no GPU, only NVIDIA's compiler.

    python -m venv nvrtc && nvrtc/bin/pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12
    PYTHONPATH=. .venv/bin/python tests/support/compile_kernels.py nvrtc/lib/python3*/site-packages/nvidia

Kernels over elements are wrapped as CuPy wraps them, but with 16-bit floats of CUDA's headers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from psframework import backend, optim
from psframework.backend.kernels import batch_norm, gelu, layer_norm, softmax, updates
from psframework.backend.kernels.source import prelude

DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), backend.bfloat16]
NAMES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
RULES = [
    optim.SGDRule(),
    optim.SGDRule(momentum=0.9, nesterov=True, weight_decay=0.1),
    optim.SGDRule(momentum=0.9, dampening=0.5),
    optim.AdamRule(amsgrad=True, weight_decay=0.1),
    optim.AdamWRule(),
    optim.AdagradRule(weight_decay=0.1),
    optim.RMSpropRule(centered=True, momentum=0.5),
    optim.FTRLRule(l1=0.1, beta=1.0, l2_shrinkage=0.1),
    optim.FTRLRule(lr_power=-0.3),
    optim.LAMBRule(weight_decay=0.1),
]


def elementwise(dtype: str, inputs: list[str], outputs: list[str], body: str) -> str:
    """A kernel over elements, about as CuPy writes it."""
    pointers = ", ".join([*(f"const T* _{name}" for name in inputs), *(f"T* _{name}" for name in outputs)])
    loads = [f"const T& {name} = _{name}[i];" for name in inputs] + [
        f"T& {name} = _{name}[i];" for name in outputs
    ]
    head = HEADERS if dtype.startswith("__") else ""
    body = f"int i = threadIdx.x; {' '.join(loads)} {body}"
    return f'{head}typedef {dtype} T;\nextern "C" __global__ void k({pointers}) {{ {body} }}'


def sources() -> Iterator[tuple[str, str]]:
    """Every kernel's name and code."""
    for dtype in DTYPES:
        for module in (softmax, layer_norm, batch_norm):
            yield f"{module.__name__.rpartition('.')[2]} {dtype.name}", prelude(dtype) + module.SOURCE
        for approximate in ("none", "tanh"):
            for inputs, output in ((["x"], "y"), (["g", "x"], "into")):
                body = gelu.body(approximate, dtype, output == "into")
                yield (
                    f"gelu {approximate} {output} {dtype.name}",
                    elementwise(NAMES[dtype.name], inputs, [output], body),
                )
    for rule in RULES:
        update = updates.update_of(rule)
        assert update is not None
        for name in ("float", "double"):
            code = elementwise(name, ["g", *update.scalars], ["p", *update.slots], update.body)
            yield f"{rule!r} {name}", code


def compiled(nvrtc: ctypes.CDLL, name: str, code: str, options: list[str]) -> bool:
    """Whether NVRTC takes the code; prints what it says if not."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernel.cu", 0, None, None)
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        print(f"{name}: {log.value.decode()}")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return not failed


def main() -> int:
    root = Path(sys.argv[1])
    nvrtc = ctypes.CDLL(str(next(root.glob("cuda_nvrtc/lib/libnvrtc.so.*"))))
    count = failures = 0
    for architecture in ("compute_60", "compute_80", "compute_90"):
        options = [
            f"--gpu-architecture={architecture}",
            "--std=c++17",
            f"-I{root / 'cuda_runtime' / 'include'}",
        ]
        for name, code in sources():
            count += 1
            failures += not compiled(nvrtc, name, code, options)
    print(f"{count} compiled, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
