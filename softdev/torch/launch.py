#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""softdev-torch: runs an unmodified PyTorch script on CPU tensors, its backend "nccl" being the
software device.

    softdev-torch [--libs DIR] [--ranks N] script.py [arguments]
    torchrun --nproc-per-node 2 launch.py script.py [arguments]

See README.md beside this file.
"""

import argparse
import os
import random
import runpy
import signal
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text."""

    def error(self, message):
        self.exit(2, f"softdev-torch: {message}; --help lists the options\n")


def parse(arguments):
    parser = OneLineParser(prog="softdev-torch",
                           description="Runs an unmodified PyTorch script that says "
                                     "init_process_group(\"nccl\") on CPU tensors, "
                                     "over the software device.")
    parser.add_argument("--libs", metavar="DIR", default=os.environ.get("SOFTDEV_LIBDIR", ""),
                        help="folder of libcuda.so.1 and libnccl.so.2, "
                             "or a build tree's softdev (default: $SOFTDEV_LIBDIR, "
                             "else the loader's search)")
    parser.add_argument("--bind", choices=["global", "handle"],
                        default=os.environ.get("SOFTDEV_BIND", "global"),
                        help="look NCCL's functions up in the global scope, "
                             "where a preload comes first, or in the library's handle, "
                             "past any preload (default: $SOFTDEV_BIND or global)")
    parser.add_argument("--ranks", type=int, metavar="N",
                        help="start N ranks on this machine (default: this process is the rank "
                             "that RANK names)")
    parser.add_argument("--map-cuda", action="store_true",
                        default=os.environ.get("SOFTDEV_MAP_CUDA") == "1",
                        help="let torch.cuda.is_available() be true and \"cuda\" mean the CPU, "
                             "for scripts that name it")
    parser.add_argument("script", help="the script, run as __main__")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    if options.ranks is not None and options.ranks < 1:
        parser.error(f"--ranks must be at least 1, not {options.ranks}")
    if not os.path.isfile(options.script):
        parser.error(f"there is no script '{options.script}'")
    if options.bind not in ("global", "handle"):
        parser.error(f"SOFTDEV_BIND must be global or handle, not '{options.bind}'")
    return options


def free_port():
    """A port nobody listens on now, below those that the kernel hands out: between here and rank
    0's listening, other programs' connections could take one of those."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as limits:
            first = int(limits.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    for _ in range(100):
        port = random.randrange(10000, first) if first > 11000 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError(f"no free port found between 10000 and {first}")


def start_ranks(options):
    """Starts the ranks as processes of their own; the first that fails ends the others. Returns
    the exit code."""
    port = free_port()
    command = [sys.executable, os.path.realpath(__file__), "--bind", options.bind]
    if options.libs:
        command += ["--libs", options.libs]
    if options.map_cuda:
        command += ["--map-cuda"]
    command += [options.script, *options.arguments]
    ranks = []
    for rank in range(options.ranks):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank),
                           WORLD_SIZE=str(options.ranks), LOCAL_WORLD_SIZE=str(options.ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        ranks.append(subprocess.Popen(command, env=environment))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        running = dict(enumerate(ranks))
        code = 0
        while running:
            pid, status = os.wait()
            rank = next((number for number, process in running.items() if process.pid == pid), None)
            if rank is None:
                continue
            ranks[rank].returncode = os.waitstatus_to_exitcode(status)
            del running[rank]
            if ranks[rank].returncode and not code:
                code = ranks[rank].returncode
                print(f"softdev-torch: rank {rank} ended with code {code}", file=sys.stderr,
                      flush=True)
        return code if code >= 0 else 128 - code
    finally:
        for process in ranks:
            if process.returncode is None:
                process.kill()


def run_script(options):
    """Makes this process a rank and runs the script in it."""
    # CPU tensors are ordinary memory; a real device would want its own.
    os.environ.setdefault("SOFTDEV_PAGEABLE", "1")
    sys.path.insert(0, HERE)
    # Before PyTorch: where it is built for CUDA it would load an NCCL of its own, and there would
    # be two. By its name it takes the one that is there.
    from softdev_torch import binding
    try:
        library = binding.Library([options.libs] if options.libs else [], options.bind)
    except binding.NcclError as error:
        sys.exit(f"softdev-torch: {error}")
    try:
        import torch.distributed
    except ImportError as error:
        sys.exit(f"softdev-torch: PyTorch cannot be imported by {sys.executable} ({error}); "
                 "on Debian: apt install python3-torch libopenblas0-pthread, "
                 "and use /usr/bin/python3")
    if not torch.distributed.is_available():
        sys.exit("softdev-torch: this PyTorch was built without torch.distributed")
    from softdev_torch import completion, group, patch
    sys.path.remove(HERE)
    group.NcclGroup.library = library
    group.NcclGroup.tracker = completion.Tracker(library)
    group.NcclGroup.device = int(os.environ.get("LOCAL_RANK", "0"))
    state = completion.close_at_exit(group.NcclGroup.tracker)
    patch.install()
    if options.map_cuda:
        from softdev_torch import cuda_names
        cuda_names.install()
    else:
        # A CUDA build of PyTorch may find the software device's runtime and take it for a GPU.
        torch.cuda.is_available = lambda: False
        torch.cuda.device_count = lambda: 0
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    try:
        runpy.run_path(options.script, run_name="__main__")
    except SystemExit as ending:
        state["failing"] = ending.code not in (None, 0)
        raise


def main():
    options = parse(sys.argv[1:])
    if options.ranks is not None:
        sys.exit(start_ranks(options))
    run_script(options)


if __name__ == "__main__":
    main()
