# SPDX-License-Identifier: Apache-2.0
"""The process group: torch.distributed's collectives as NCCL calls on CPU tensors.

Called by torch.distributed in Python for every collective, and by PyTorch's C++ (DDP's reducer) for
allreduce, broadcast and allgather. Communicators are made as ProcessGroupNCCL makes them: one at
the first collective, one for each pair of ranks at their first send or receive outside a batch.
"""

import torch
import torch.distributed as dist

from .binding import NcclError
from .channel import Channel, address, by_unique_id, check_dense, data_type


class Options:
    """Stands in for ProcessGroupNCCL.Options; the settings are accepted and have no effect but
    the timeout."""

    def __init__(self, is_high_priority_stream=False):
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = None
        self.config = type("Config", (), {"blocking": 1})()
        self.split_from = None
        self.split_color = None
        self.global_ranks_in_group = []
        self.group_name = ""
        self.lazy_init = False


class NcclGroup(dist.ProcessGroup):
    """torch.distributed's backend "nccl"."""

    library = None   # set by the launcher before the first group
    tracker = None
    device = 0

    Options = Options

    def __init__(self, store, rank, size, options=None):
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._options = options
        timeout = getattr(options, "_timeout", None)
        self._seconds = timeout.total_seconds() if timeout else 1800.0
        self._channel = None
        self._pairs = {}
        self._batch = None
        self._group_name, self._group_desc = "", ""

    # --- communicators
    # -------------------------------------------------------------------------------------------

    def _make(self, key, rank, size):
        return self._open(rank, size,
                          by_unique_id(self.library, self._store, "softdev/" + key, rank, size))

    def _open(self, rank, size, make):
        return Channel(self.library, self.tracker, rank, size, self.device, self._seconds, make)

    def channel(self):
        if self._channel is None:
            self._channel = self._make("all", self._rank, self._size)
        return self._channel

    def _pair(self, peer):
        """The channel for point-to-point traffic with `peer`, and the peer's rank in it."""
        if self._batch is not None:
            return self.channel(), peer
        if peer not in self._pairs:
            low, high = sorted((self._rank, peer))
            self._pairs[peer] = self._make(f"{low}:{high}", 0 if self._rank == low else 1, 2)
        return self._pairs[peer], 0 if peer < self._rank else 1

    def shutdown(self, *_):
        """Finishes what is outstanding and destroys the communicators; called by
        destroy_process_group."""
        channels = [channel for channel in (self._channel, *self._pairs.values()) if channel]
        for channel in channels:
            if self.tracker.wait_idle(self._seconds, channel):
                channel.destroy()
            else:
                channel.abort()

    _shutdown = shutdown  # PyTorch 2.6's name

    def abort(self, *_):
        for channel in (self._channel, *self._pairs.values()):
            if channel:
                self.tracker.fail(channel, "the process group was aborted")

    # --- one operation
    # -------------------------------------------------------------------------------------------

    def _run(self, what, tensors, value, calls, after=None, channel=None, grouped=False):
        channel = channel or self.channel()
        operation = channel.operation(what, tensors, value, after)
        if self._batch is not None:
            calls(channel)
            self._batch.append(operation)
            return operation.work

        def issue():
            if grouped:
                channel.nccl("ncclGroupStart")
            try:
                calls(channel)
            finally:
                if grouped:
                    channel.nccl("ncclGroupEnd")
        return channel.start(operation, issue)

    def _start_coalescing(self, *_):
        self.channel()
        self.library.enter()
        self.library.nccl("ncclGroupStart")
        self._batch = []

    def _end_coalescing(self, *_):
        batch, self._batch = self._batch, None
        channel = self.channel()
        whole = channel.operation("coalesced operations", None, None)
        whole.members = batch
        try:
            return channel.start(whole, lambda: channel.nccl("ncclGroupEnd"))
        except NcclError as error:
            whole.finish(str(error))
            raise

    # --- collectives
    # ---------------------------------------------------------------------------------------------

    def allreduce(self, tensors, opts=None):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        operation = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        check_dense(tensors)

        def calls(channel):
            for tensor in tensors:
                channel.reduce("ncclAllReduce", operation, tensor, tensor)
        return self._run("ncclAllReduce", tensors, tensors, calls, grouped=len(tensors) > 1)

    def allreduce_coalesced(self, tensors, opts=None):
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors, opts=None):
        root = opts.rootRank if opts is not None else 0
        check_dense(tensors)

        def calls(channel):
            for tensor in tensors:
                channel.nccl("ncclBroadcast", address(tensor), address(tensor), tensor.numel(),
                             data_type(tensor), root, channel.comm, channel.stream)
        return self._run("ncclBroadcast", tensors, tensors, calls, grouped=len(tensors) > 1)

    def reduce(self, tensors, opts=None):
        root, operation = opts.rootRank, opts.reduceOp
        check_dense(tensors)

        def calls(channel):
            for tensor in tensors:
                channel.reduce("ncclReduce", operation, tensor, tensor, root)
        return self._run("ncclReduce", tensors, tensors, calls, grouped=len(tensors) > 1)

    def _gather_all(self, outputs, inputs, value, after=None):
        check_dense([*outputs, *inputs])
        for output, part in zip(outputs, inputs):
            if output.numel() != part.numel() * self._size or output.dtype != part.dtype:
                raise ValueError("output tensor size must be equal to world_size times input "
                                 "tensor size, of one type")

        def calls(channel):
            for output, part in zip(outputs, inputs):
                channel.nccl("ncclAllGather", address(part), address(output), part.numel(),
                             data_type(part), channel.comm, channel.stream)
        return self._run("ncclAllGather", [outputs, inputs], value, calls, after,
                         grouped=len(inputs) > 1)

    def allgather(self, outputs, inputs, opts=None):
        flat = [part.new_empty((self._size * part.numel(),)) for part in inputs]
        inputs = [part.contiguous() for part in inputs]

        def spread():
            for pieces, whole, part in zip(outputs, flat, inputs):
                for rank, piece in enumerate(pieces):
                    piece.copy_(whole[rank * part.numel():(rank +
                                                           1) * part.numel()].view(piece.shape))
        return self._gather_all(flat, inputs, outputs, spread)

    def _allgather_base(self, output, part, opts=None):
        return self._gather_all([output], [part], output)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        # outputs[rank][i] is rank's copy of inputs[i]; allgather() wants it the other way round.
        turned = [[row[i] for row in outputs] for i in range(len(inputs))]
        return self.allgather(turned, inputs, opts)

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._gather_all(outputs, inputs, outputs)

    def _scatter_all(self, outputs, inputs, operation):
        check_dense([*outputs, *inputs])
        for output, whole in zip(outputs, inputs):
            if whole.numel() != output.numel() * self._size or output.dtype != whole.dtype:
                raise ValueError("input tensor must be the same size as output size times world "
                                 "size, of one type")

        def calls(channel):
            for output, whole in zip(outputs, inputs):
                channel.reduce("ncclReduceScatter", operation, whole, output)
        return self._run("ncclReduceScatter", [outputs, inputs], outputs, calls,
                         grouped=len(outputs) > 1)

    def reduce_scatter(self, outputs, inputs, opts=None):
        flat = [torch.cat([piece.reshape(-1) for piece in pieces]) for pieces in inputs]
        return self._scatter_all(outputs, flat,
                                 opts.reduceOp if opts is not None else dist.ReduceOp.SUM)

    def _reduce_scatter_base(self, output, whole, opts=None):
        return self._scatter_all([output], [whole],
                                 opts.reduceOp if opts is not None else dist.ReduceOp.SUM)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._scatter_all(outputs, inputs,
                                 opts.reduceOp if opts is not None else dist.ReduceOp.SUM)

    def barrier(self, opts=None):
        return self.allreduce([torch.zeros(1)])

    # --- made of sends and receives, as in ProcessGroupNCCL
    # --------------------------------------------------------

    def _exchange(self, what, sends, receives, value):
        """sends and receives: (tensor, peer) of the whole group; the own share is copied."""
        own = [tensor for tensor, peer in sends if peer == self._rank]
        for target, source in zip((tensor for tensor, peer in receives if peer == self._rank), own):
            target.copy_(source.view(target.shape))
        sends = [(tensor, peer) for tensor, peer in sends if peer != self._rank and tensor.numel()]
        receives = [(tensor, peer)
                    for tensor, peer in receives if peer != self._rank and tensor.numel()]
        check_dense([tensor for tensor, _ in sends + receives])

        def calls(channel):
            for function, list_of in (("ncclSend", sends), ("ncclRecv", receives)):
                for tensor, peer in list_of:
                    channel.nccl(function, address(tensor), tensor.numel(), data_type(tensor), peer,
                                 channel.comm, channel.stream)
        return self._run(what, [sends, receives], value, calls, grouped=True)

    def gather(self, outputs, inputs, opts):
        root = opts.rootRank
        receives = list(zip(outputs[0], range(self._size))) if self._rank == root else []
        return self._exchange("gather", [(inputs[0], root)], receives, outputs)

    def scatter(self, outputs, inputs, opts):
        root = opts.rootRank
        sends = list(zip(inputs[0], range(self._size))) if self._rank == root else []
        return self._exchange("scatter", sends, [(outputs[0], root)], outputs)

    def alltoall(self, outputs, inputs, opts=None):
        ranks = range(self._size)
        return self._exchange("alltoall", list(zip(inputs, ranks)), list(zip(outputs, ranks)),
                              outputs)

    def alltoall_base(self, output, whole, output_splits, input_splits, opts=None):
        check_dense([output, whole])

        def pieces(tensor, splits):
            if not splits:
                if tensor.shape[0] % self._size:
                    raise ValueError("tensor's dim 0 does not divide equally across group size")
                splits = [tensor.shape[0] // self._size] * self._size
            return list(zip(torch.split(tensor, list(splits)), range(self._size)))
        return self._exchange("alltoall", pieces(whole, input_splits),
                              pieces(output, output_splits), output)

    def send(self, tensors, peer, tag=0):
        return self._point_to_point("ncclSend", tensors, peer)

    def recv(self, tensors, peer, tag=0):
        return self._point_to_point("ncclRecv", tensors, peer)

    def _point_to_point(self, function, tensors, peer):
        if peer == self._rank:
            raise ValueError("a rank cannot send to itself or receive from itself")
        check_dense(tensors)
        channel, number = self._pair(peer)

        def calls(channel):
            for tensor in tensors:
                channel.nccl(function, address(tensor), tensor.numel(), data_type(tensor), number,
                             channel.comm, channel.stream)
        return self._run(function, tensors, tensors, calls, channel=channel)

    def recv_anysource(self, tensors, tag=0):
        raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")

    def monitored_barrier(self, *_, **__):
        raise RuntimeError("monitored_barrier is only implemented for the backend "
                           "gloo, not for nccl")

    def gather_single(self, output, part, opts):
        pieces = list(output.chunk(self._size)) if self._rank == opts.rootRank else []
        return self.gather([pieces], [part], opts)

    # PyTorch 2.15's names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # --- what torch.distributed asks a group for
    # ------------------------------------------------------------------

    @property
    def options(self):
        return self._options

    def getBackendName(self):  # PyTorch's name
        return "nccl"

    def _get_backend_name(self):
        return "nccl"

    def name(self):
        return "nccl"

    def _has_hooks(self):
        return False

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0

    # From 2.1 a group has a backend for each kind of device. This one is its own, for all.

    supports_splitting = False

    def _get_backend(self, device):
        return self

    def eager_connect_single_device(self, device):
        self.channel()

    # PyTorch 2.x gives a group its name, and its C++ asks for it.

    def getGroupName(self):
        return self._group_name

    def setGroupName(self, name):
        self._group_name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def getGroupDesc(self):
        return self._group_desc

    def setGroupDesc(self, description):
        self._group_desc = description

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc)
