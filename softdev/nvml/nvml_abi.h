/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of NVML's binary interface that NCCL 2.27 to 2.30 use: numbers and layouts, as NVIDIA's
 * NVML API reference (release 580) documents them. The header itself comes with no toolkit package
 * that a build of the software device needs.
 */
#ifndef SOFTDEV_NVML_NVML_ABI_H
#define SOFTDEV_NVML_NVML_ABI_H

#define SOFTDEV_NVML __attribute__((visibility("default")))

enum softdev_nvml_return {
    SOFTDEV_NVML_SUCCESS = 0,
    SOFTDEV_NVML_UNINITIALIZED = 1,
    SOFTDEV_NVML_INVALID_ARGUMENT = 2,
    SOFTDEV_NVML_NOT_SUPPORTED = 3,
    SOFTDEV_NVML_NOT_FOUND = 6,
    SOFTDEV_NVML_UNKNOWN = 999,
};

/* Opaque to callers. */
typedef struct softdev_nvml_device* softdev_nvml_device_t;

/* NVML's newest form has 68 bytes, with a longer bus id in place of what is reserved here.
 * NCCL 2.30 hands these 52 to the function that writes the newest form, so no more may be written.
 */
struct softdev_nvml_pci {
    char bus_id[16]; /* "0000:01:00.0" */
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id; /* device << 16 | vendor */
    unsigned pci_subsystem_id;
    unsigned reserved[4];
};

enum {
    SOFTDEV_NVML_FIELD_NVLINK_SPEED = 90, /* Mbyte/s of one link */
    SOFTDEV_NVML_FIELD_NVLINK_COUNT = 91,
    SOFTDEV_NVML_FIELD_NVLINK_GET_SPEED = 164,
    SOFTDEV_NVML_FIELD_NVLINK_GET_STATE = 165,
    SOFTDEV_NVML_FIELD_C2C_COUNT = 170,
};
enum { SOFTDEV_NVML_VALUE_UNSIGNED = 1 };

struct softdev_nvml_field {
    unsigned field;
    unsigned scope; /* the link */
    long long timestamp_us;
    long long latency_us;
    int value_type;
    int result; /* of this field */
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

enum { SOFTDEV_NVML_FABRIC_COMPLETED = 3 };

/* Version 2. */
struct softdev_nvml_fabric {
    unsigned version;
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique;
    unsigned char state; /* 0: not supported */
    unsigned health;
};

struct softdev_nvml_confidential_settings {
    unsigned version;
    unsigned environment;
    unsigned feature;
    unsigned developer_tools;
    unsigned multi_gpu_mode;
};
struct softdev_nvml_confidential_state {
    unsigned environment;
    unsigned feature;
    unsigned developer_tools;
};

#endif
