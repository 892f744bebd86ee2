"""Count what a session allocates: sums of the sizes that were asked for, which repeat from run to run and compare directly with sizes
of tensors."""

import ctypes

import onnxruntime as ort


class Counter:
    """Has `live`, `peak` and `reset_peak`; where `live` is None, nothing is counted."""

    live = None

    def during(self, action):
        """The peak while `action` runs, in bytes beyond what was live before."""
        if self.live is None:
            action()
            return None
        self.reset_peak()
        before = self.live()
        action()
        return self.peak() - before


class Uncounted(Counter):
    """Where memory cannot be counted."""


class MallocCounter(Counter):
    """The preloaded counter's functions, if it is preloaded."""

    def __init__(self):
        try:
            library = ctypes.CDLL(None)
            self.live, self.peak = library.ckpt_live_bytes, library.ckpt_peak_bytes
            self.live.restype = self.peak.restype = ctypes.c_size_t
            self.reset_peak = library.ckpt_reset_peak
            self.reset_peak.restype = None
        except AttributeError:
            self.live = None


TAKE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
RETURN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
EMPTY = ctypes.CFUNCTYPE(None)


class CudaMemory(Counter):
    """What a session takes of a GPU's memory, to the byte; one for a process.

    ONNX Runtime's CUDA provider takes an allocator of the caller's in place of its arena (`gpu_external_alloc`). This one asks CUDA for
    each tensor and workspace by itself, and adds up the sizes that were asked for. It is slow: CUDA waits for the device whenever memory
    is returned. What libraries take for themselves (contexts, modules, cuBLAS) does not come here; `used` tells what the device has
    given away in all.
    """

    def __init__(self):
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        try:
            self.cuda = ctypes.CDLL(loaded("libcudart.so"))
        except OSError as error:
            raise SystemExit(f"no CUDA runtime: {error}; this needs onnxruntime-gpu and the libraries that it wants") from None
        self.now = self.most = 0
        self.sizes = {}
        # Of each block that was taken its size and address, of each that was returned the size below zero.
        self.events = []
        # Kept, since the provider has their addresses alone.
        self.functions = TAKE(self._take), RETURN(self._return), EMPTY(lambda: None)

    def provider_options(self):
        """What the provider is told, so that its memory comes from here."""
        names = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
        return {name: str(ctypes.cast(function, ctypes.c_void_p).value) for name, function in zip(names, self.functions)}

    def live(self):
        """Bytes asked for and not yet returned."""
        return self.now

    def peak(self):
        """The most since the last `reset_peak`, in bytes."""
        return self.most

    def reset_peak(self):
        self.most = self.now

    def used(self):
        """Bytes of the device that are not free, whoever has them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(self.cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)), "cudaMemGetInfo")
        return total.value - free.value

    def _take(self, size):
        block = ctypes.c_void_p()
        # The provider reads null as "no memory".
        if self.cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size)) != 0 or not block.value:
            return None
        self.sizes[block.value] = size
        self.events.append((size, block.value))
        self.now += size
        self.most = max(self.most, self.now)
        return block.value

    def _return(self, block):
        if block:
            size = self.sizes.pop(block)
            self.events.append((-size, block))
            self.now -= size
            self.cuda.cudaFree(ctypes.c_void_p(block))

    @staticmethod
    def _check(status, what):
        if status != 0:
            raise SystemExit(f"{what} failed: CUDA's error {status}")


def loaded(name):
    """The path of a library that this process has loaded, or the name, for the system to find."""
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split()[-1] for line in maps if f"/{name}" in line})
    return paths[0] if paths else name
