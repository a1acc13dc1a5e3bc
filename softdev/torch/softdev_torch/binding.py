# SPDX-License-Identifier: Apache-2.0
"""The C functions of libnccl and libcuda that the process group calls, through ctypes.

The functions are looked up in the global scope after loading NCCL with RTLD_GLOBAL, so that a
preloaded library that defines them comes first, exactly as for PyTorch's own libtorch_cuda.so. With
bind="handle" they are looked up in the library's handle, past any preload, as programs do that load
NCCL by ctypes or dlsym.
"""

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

UNIQUE_ID_BYTES = 128
IN_PROGRESS = 7            # ncclInProgress
CUDA_NOT_READY = 600       # CUDA_ERROR_NOT_READY
STREAM_NON_BLOCKING = 1
CUDA_LIBRARY, NCCL_LIBRARY = "libcuda.so.1", "libnccl.so.2"

HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class NcclError(RuntimeError):
    """A call of NCCL or of the driver failed, or the communicator did later. The message names
    the call."""


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]

    def to_hex(self):
        return ctypes.string_at(byref(self), UNIQUE_ID_BYTES).hex()

    @classmethod
    def from_hex(cls, text):
        return cls.from_buffer_copy(bytes.fromhex(text))


_NCCL_ARGUMENTS = {
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(c_void_p), c_int, UniqueId, c_int],
    "ncclCommSplit": [c_void_p, c_int, c_int, POINTER(c_void_p), c_void_p],
    "ncclCommDestroy": [c_void_p],
    "ncclCommAbort": [c_void_p],
    "ncclCommGetAsyncError": [c_void_p, POINTER(c_int)],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclAllReduce": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclReduce": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p],
    "ncclBroadcast": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclAllGather": [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p],
    "ncclReduceScatter": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclSend": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclRecv": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclRedOpCreatePreMulSum": [POINTER(c_int), c_void_p, c_int, c_int, c_void_p],
    "ncclRedOpDestroy": [c_int, c_void_p],
    "ncclGetVersion": [POINTER(c_int)],
}
# Not of every release.
_NEWER_ARGUMENTS = {
    "ncclCommSuspend": [c_void_p, c_int],
    "ncclCommResume": [c_void_p],
    "ncclCommMemStats": [c_void_p, c_int, POINTER(c_uint64)],
}
_CUDA_ARGUMENTS = {
    "cuInit": [c_int],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuStreamCreate": [POINTER(c_void_p), c_int],
    "cuStreamQuery": [c_void_p],
    "cuStreamSynchronize": [c_void_p],
    "cuLaunchHostFunc": [c_void_p, HOST_FUNCTION, c_void_p],
}


def find_library(folders, name):
    """The path of `name` in one of the folders, or in the subfolder a build tree has it in;
    without folders the bare name, for the loader's search. A folder that was named and lacks it
    is an error, never a silent other library."""
    for folder in folders:
        for path in (folder, os.path.join(folder, "cuda"), os.path.join(folder, "nccl")):
            candidate = os.path.join(path, name)
            if os.path.exists(candidate):
                return candidate
    if folders:
        raise NcclError(f"no {name} in {', '.join(folders)}; name its folder with --libs DIR "
                        "or SOFTDEV_LIBDIR")
    return name


class Library:
    """The two libraries, loaded; methods named after the C functions raise NcclError."""

    def __init__(self, folders=(), bind="global"):
        self.paths = {}
        handles = {}
        for name in (CUDA_LIBRARY, NCCL_LIBRARY):
            path = find_library(folders, name)
            try:
                handles[name] = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NcclError(f"{name} cannot be loaded ({error}); "
                                "name its folder with --libs DIR or SOFTDEV_LIBDIR, "
                                "or build the software device") from error
            self.paths[name] = path
        scope = ctypes.CDLL(None)
        source = handles[NCCL_LIBRARY] if bind == "handle" else scope
        self._nccl = self._functions(source, _NCCL_ARGUMENTS, NCCL_LIBRARY)
        self._nccl.update(self._functions(source, _NEWER_ARGUMENTS, NCCL_LIBRARY, needed=False))
        self._cuda = self._functions(handles[CUDA_LIBRARY] if bind == "handle" else scope,
                                     _CUDA_ARGUMENTS, CUDA_LIBRARY)
        self._last_error = source.ncclGetLastError
        self._last_error.argtypes, self._last_error.restype = [c_void_p], c_char_p
        self._error_string = source.ncclGetErrorString
        self._error_string.argtypes, self._error_string.restype = [c_int], c_char_p
        self._context = None
        self._thread = threading.local()

    @staticmethod
    def _functions(scope, table, library, needed=True):
        functions = {}
        for name, arguments in table.items():
            try:
                functions[name] = scope[name]
            except AttributeError as error:
                if needed:
                    raise NcclError(f"{library} has no {name}") from error
                continue
            functions[name].argtypes, functions[name].restype = arguments, c_int
        return functions

    def nccl(self, function, *arguments, comm=None):
        """Calls a function of NCCL; raises NcclError with the result's text and NCCL's own last
        error."""
        if function not in self._nccl:
            raise NcclError(f"{NCCL_LIBRARY} has no {function}")
        result = self._nccl[function](*arguments)
        if result not in (0, IN_PROGRESS):
            raise NcclError(self.describe(function, result, comm))

    def describe(self, function, result, comm=None):
        """One line for a failed result: the call, what the code means, NCCL's last error."""
        text = (self._error_string(result) or b"").decode(errors="replace")
        last = (self._last_error(comm) or b"").decode(errors="replace").strip()
        return f"{function} failed: {text} (result {result})" + (f"; last error: {last}" if last
                                                                 else "")

    def cuda(self, function, *arguments):
        """Calls a function of the driver; raises NcclError."""
        result = self._cuda[function](*arguments)
        if result:
            raise NcclError(f"{function} failed: CUDA error {result}")

    def open_device(self, index):
        """Takes the primary context of a device, as the CUDA runtime does for its user. Once per
        process."""
        if self._context is None:
            self.cuda("cuInit", 0)
            device, context = c_int(), c_void_p()
            self.cuda("cuDeviceGet", byref(device), index)
            self.cuda("cuDevicePrimaryCtxRetain", byref(context), device)
            self._context = context
        self.enter()

    def enter(self):
        """Makes the device current in the calling thread."""
        if not getattr(self._thread, "entered", False):
            self.cuda("cuCtxSetCurrent", self._context)
            self._thread.entered = True

    def make_stream(self):
        stream = c_void_p()
        self.cuda("cuStreamCreate", byref(stream), STREAM_NON_BLOCKING)
        return stream

    def settle(self, stream):
        """Waits until the stream's last callback has returned to C, whatever became of its work."""
        self._cuda["cuStreamSynchronize"](stream)

    def stream_error(self, stream):
        """The sticky error of a stream, 0 if there is none (work still running is none)."""
        result = self._cuda["cuStreamQuery"](stream)
        return 0 if result == CUDA_NOT_READY else result

    def async_error(self, comm):
        """The asynchronous error of a communicator, 0 if there is none."""
        error = c_int()
        result = self._nccl["ncclCommGetAsyncError"](comm, byref(error)) or error.value
        return 0 if result == IN_PROGRESS else result
