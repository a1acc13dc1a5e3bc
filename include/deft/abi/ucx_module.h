/* SPDX-License-Identifier: Apache-2.0 */
/* What the plugin asks of its UCX module, libdeft-ucx.so: a library of its own, as it links to UCX,
 * which changes the process it is loaded into (docs/ucx.md). C and C++.
 *
 * A channel joins two processes. Frames of fixed size go over it both ways, each with some data;
 * they come out in the order in which they were sent. At most DEFT_UCX_DEPTH of one direction are
 * open at a time. Bulk data is fetched by the receiving end, into memory of the module. */
#ifndef DEFT_ABI_UCX_MODULE_H
#define DEFT_ABI_UCX_MODULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. A module of another number is not used. */
#define DEFT_UCX_ABI 1
#define DEFT_UCX_FRAME_BYTES 48        /* of each frame */
#define DEFT_UCX_DATA_BYTES 8192       /* that a frame takes along; more goes as bulk */
#define DEFT_UCX_BULK_BYTES (32 << 20) /* at most, of one frame */
#define DEFT_UCX_DEPTH 64
#define DEFT_UCX_ADDRESS_BYTES 16384 /* an address is no longer than that */

typedef struct deft_ucx_device deft_ucx_device_t;   /* a UCP context; any thread */
typedef struct deft_ucx_channel deft_ucx_channel_t; /* one thread at a time */

typedef enum { DEFT_UCX_OK = 0, DEFT_UCX_AGAIN = 1, DEFT_UCX_FAILED = -1 } deft_ucx_result_t;

/* Where what comes goes. */
typedef struct {
    void* user;
    /* A frame is here, and its data, which are valid during the call; `bulk`: they were sent as
     * such. DEFT_UCX_FAILED: the peer breaks the protocol and the channel fails. */
    deft_ucx_result_t (*taken)(void* user, const void* frame, const void* data, uint64_t bytes,
                               int bulk);
} deft_ucx_sink_t;

/* What fails says why in `problem`, `room` bytes. */
typedef struct {
    uint32_t abi;                 /* DEFT_UCX_ABI */
    uint32_t bytes;               /* sizeof(deft_ucx_module_t) */
    const char* (*version)(void); /* UCX's, "1.13.1" */

    /* A device with these network devices, as UCX_NET_DEVICES names them; "": those that UCX
     * chooses by its own settings. NULL on failure, also where UCX finds none of these.
     * Milliseconds. It is never closed. */
    deft_ucx_device_t* (*open)(const char* net_devices, char* problem, size_t room);
    /* Memory that bulk data is sent from, until unmap(). 0 on failure. */
    uint32_t (*map)(deft_ucx_device_t* device, const void* data, size_t bytes, char* problem,
                    size_t room);
    void (*unmap)(deft_ucx_device_t* device, uint32_t key);

    /* NULL on failure. Milliseconds. */
    deft_ucx_channel_t* (*make)(deft_ucx_device_t* device, char* problem, size_t room);
    /* Where the peer's connect() finds it; returns the bytes of it. Valid as long as the channel.
     */
    size_t (*address)(const deft_ucx_channel_t* channel, const void** at);
    /* Once; before that the channel hears, and has no room to send. The end that is connected to
     * calls it when it has heard the other: UCX 1.13 ends a process in which two ends connect to
     * each other while the connection breaks (an assertion of tcp_cm.c). Milliseconds.
     * DEFT_UCX_FAILED: failure() says why. */
    deft_ucx_result_t (*connect)(deft_ucx_channel_t* channel, const void* address, size_t bytes);

    /* Copies the frame and up to DEFT_UCX_DATA_BYTES. `key` not 0: bulk of memory with that key,
     * which stays as it is until acknowledged() counts the frame or end() has returned. AGAIN: no
     * room. */
    deft_ucx_result_t (*send)(deft_ucx_channel_t* channel, const void* frame, const void* data,
                              uint64_t bytes, uint32_t key);
    /* Moves bytes, and hands over what has come, `most` frames. OK: something moved; AGAIN: nothing
     * did. After end(): hands over what had come whole before, and FAILED. */
    deft_ucx_result_t (*progress)(deft_ucx_channel_t* channel, const deft_ucx_sink_t* sink,
                                  size_t most);
    /* So many frames, in their order, have been taken by the peer, and none of their memory is read
     * any more. */
    uint64_t (*acknowledged)(const deft_ucx_channel_t* channel);
    /* Messages that have come, of any kind: more of them say that the peer lives. */
    uint64_t (*heard)(const deft_ucx_channel_t* channel);
    const char* (*failure)(const deft_ucx_channel_t* channel); /* NULL: none */

    /* When it returns, nothing that the peer sent reaches memory any more, and none is read for it.
     * `orderly`: what UCX has taken may still leave. Takes half a second at most. */
    void (*end)(deft_ucx_channel_t* channel, int orderly);
    void (*destroy)(deft_ucx_channel_t* channel); /* after end() */

    /* For people: what UCX may use of the device, "TRANSPORT/NAME" a line. As snprintf: returns the
     * bytes that it takes. */
    size_t (*devices)(const deft_ucx_device_t* device, char* text, size_t room);
} deft_ucx_module_t;

/* The module's one export. */
const deft_ucx_module_t* deft_ucx_module(void);

#ifdef __cplusplus
}
#endif
#endif
