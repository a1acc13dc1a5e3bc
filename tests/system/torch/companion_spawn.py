# SPDX-License-Identifier: Apache-2.0
"""A job that starts its ranks itself. Each prints what deft wants of its companion, and what the
machine's own sitecustomize has left."""

import multiprocessing


def rank(queue):
    import sitecustomize
    import torch  # noqa: F401
    from deft_companion.library import library
    queue.put([library().wants, sitecustomize.MINE])


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=rank, args=(queue,))
    process.start()
    print(queue.get(timeout=100))
    process.join()
