#!/usr/bin/env python3
"""make_cuda_stubs.py SITE_PACKAGES OUT_DIR [SONAME_TO_KEEP ...]

Writes stub shared libraries for the CUDA libraries that the PyPI build of torch is linked
against but never calls on a machine without a GPU, so that it loads without them.
"""
import glob
import os
import re
import subprocess
import sys

PREFIXES = re.compile(
    r"^(cublas|cudnn|cufft|cusparse|nvrtc|cusolver|nccl|pnccl|cuFile|cufile|curand|nvshmem|cupti|nvJitLink|nvtx)"
)


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def main(site, out, keep):
    os.makedirs(out, exist_ok=True)
    undefined, defined, sonames = set(), set(), set()
    for lib in glob.glob(site + "/torch/lib/*.so*"):
        for line in lines("nm", "-D", lib):
            parts = line.split()
            symbol = parts[-1].split("@")[0]
            (undefined if len(parts) >= 2 and parts[-2] in "Uwv" else defined).add(symbol)
        for line in lines("readelf", "-d", lib):
            if found := re.search(r"NEEDED.*\[(lib(cu|nv|nccl)[^\]]*)\]", line):
                sonames.add(found.group(1))
    sonames -= keep | {"libcuda.so.1"}
    symbols = sorted(s for s in undefined - defined if PREFIXES.match(s))
    source = os.path.join(out, "stub.c")
    with open(source, "w", encoding="utf-8") as f:
        f.write("#include <stdlib.h>\n" + "".join(f"void {s}(void){{abort();}}\n" for s in symbols))
    for name in sorted(sonames):
        subprocess.check_call(
            ["gcc", "-shared", "-fPIC", "-O0", "-w", "-Wl,-soname," + name, "-o", os.path.join(out, name), source]
        )
    print(f"{len(sonames)} stub libraries with {len(symbols)} symbols in {out}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], set(sys.argv[3:]))
