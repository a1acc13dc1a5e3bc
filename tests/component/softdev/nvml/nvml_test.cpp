// SPDX-License-Identifier: Apache-2.0
// What NCCL asks NVML, for the devices of libcuda: with the defaults, and as the environment names
// number, places and links.
#include "softdev/nvml/nvml_abi.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

extern "C" {
int nvmlInit_v2();
const char* nvmlErrorString(int result);
int nvmlDeviceGetCount_v2(unsigned* count);
int nvmlDeviceGetHandleByIndex(unsigned index, softdev_nvml_device_t* device);
int nvmlDeviceGetHandleByPciBusId(const char* bus_id, softdev_nvml_device_t* device);
int nvmlDeviceGetIndex(softdev_nvml_device_t device, unsigned* index);
int nvmlDeviceGetPciInfo_v3(softdev_nvml_device_t device, softdev_nvml_pci* out);
int nvmlDeviceGetCudaComputeCapability(softdev_nvml_device_t device, int* major, int* minor);
int nvmlDeviceGetP2PStatus(softdev_nvml_device_t one, softdev_nvml_device_t other, int,
                           int* status);
int nvmlDeviceGetNvLinkState(softdev_nvml_device_t device, unsigned link, int* active);
int nvmlDeviceGetNvLinkRemotePciInfo(softdev_nvml_device_t device, unsigned link,
                                     softdev_nvml_pci* out);
int nvmlDeviceGetFieldValues(softdev_nvml_device_t device, int count, softdev_nvml_field* fields);
int nvmlDeviceGetGpuFabricInfoV(softdev_nvml_device_t device, softdev_nvml_fabric* out);
int nvmlSystemGetConfComputeSettings(softdev_nvml_confidential_settings* settings);
}

namespace {

unsigned wanted_links() {
    const char* const text = std::getenv("SOFTDEV_NVLINK");
    return text != nullptr ? static_cast<unsigned>(std::atoi(text)) : 0;
}

class Nvml : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_EQ(nvmlInit_v2(), SOFTDEV_NVML_SUCCESS);
        ASSERT_EQ(nvmlDeviceGetCount_v2(&count_), SOFTDEV_NVML_SUCCESS);
    }
    softdev_nvml_device_t device(unsigned index) {
        softdev_nvml_device_t found = nullptr;
        EXPECT_EQ(nvmlDeviceGetHandleByIndex(index, &found), SOFTDEV_NVML_SUCCESS);
        return found;
    }
    unsigned count_ = 0;
};

TEST_F(Nvml, HasTheDevicesOfLibcudaAtTheirPlaces) {
    int devices = 0;
    ASSERT_EQ(cuDeviceGetCount(&devices), CUDA_SUCCESS);
    ASSERT_EQ(count_, static_cast<unsigned>(devices));
    std::set<std::string> places;
    for (unsigned i = 0; i < count_; ++i) {
        char place[32] = {};
        ASSERT_EQ(cuDeviceGetPCIBusId(place, sizeof place, static_cast<int>(i)), CUDA_SUCCESS);
        places.insert(place);
        softdev_nvml_device_t found = nullptr;
        ASSERT_EQ(nvmlDeviceGetHandleByPciBusId(place, &found), SOFTDEV_NVML_SUCCESS) << place;
        EXPECT_EQ(found, device(i));
        unsigned index = 99;
        ASSERT_EQ(nvmlDeviceGetIndex(found, &index), SOFTDEV_NVML_SUCCESS);
        EXPECT_EQ(index, i);
        CUdevice same = -1;
        EXPECT_EQ(cuDeviceGetByPCIBusId(&same, place), CUDA_SUCCESS);
        EXPECT_EQ(same, static_cast<int>(i));
        int bus = 0;
        ASSERT_EQ(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, same), CUDA_SUCCESS);
        softdev_nvml_pci info;
        ASSERT_EQ(nvmlDeviceGetPciInfo_v3(found, &info), SOFTDEV_NVML_SUCCESS);
        EXPECT_EQ(info.bus, static_cast<unsigned>(bus));
        EXPECT_EQ(info.pci_device_id & 0xffff, 0x10deu);
    }
    EXPECT_EQ(places.size(), count_);
    if (const char* const named = std::getenv("SOFTDEV_PCI")) {
        EXPECT_EQ(places.count("0001:ca:1f.0"), 1u) << named;
    }
    softdev_nvml_device_t none = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex(count_, &none), SOFTDEV_NVML_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlDeviceGetHandleByPciBusId("0000:fe:00.0", &none), SOFTDEV_NVML_NOT_FOUND);
    EXPECT_STREQ(nvmlErrorString(SOFTDEV_NVML_NOT_FOUND), "Not Found");
}

// NCCL hands over 52 bytes.
TEST_F(Nvml, WritesNoMoreThanNcclHasRoomFor) {
    struct {
        softdev_nvml_pci info;
        unsigned char guard[64];
    } memory;
    std::memset(&memory, 0x5a, sizeof memory);
    ASSERT_EQ(nvmlDeviceGetPciInfo_v3(device(0), &memory.info), SOFTDEV_NVML_SUCCESS);
    EXPECT_EQ(sizeof memory.info, 52u);
    for (const unsigned char byte : memory.guard) {
        EXPECT_EQ(byte, 0x5a);
    }
}

TEST_F(Nvml, LinksGoToOtherGpus) {
    const unsigned links = wanted_links();
    for (unsigned i = 0; i < count_; ++i) {
        softdev_nvml_field field = {};
        field.field = SOFTDEV_NVML_FIELD_NVLINK_COUNT;
        ASSERT_EQ(nvmlDeviceGetFieldValues(device(i), 1, &field), SOFTDEV_NVML_SUCCESS);
        EXPECT_EQ(field.result, SOFTDEV_NVML_SUCCESS);
        EXPECT_EQ(field.value.u, links);
        for (unsigned link = 0; link < links; ++link) {
            int active = 0;
            EXPECT_EQ(nvmlDeviceGetNvLinkState(device(i), link, &active), SOFTDEV_NVML_SUCCESS);
            EXPECT_EQ(active, 1);
            softdev_nvml_pci remote;
            ASSERT_EQ(nvmlDeviceGetNvLinkRemotePciInfo(device(i), link, &remote),
                      SOFTDEV_NVML_SUCCESS);
            softdev_nvml_device_t peer = nullptr;
            ASSERT_EQ(nvmlDeviceGetHandleByPciBusId(remote.bus_id, &peer), SOFTDEV_NVML_SUCCESS);
            EXPECT_NE(peer, device(i));
        }
        int active = 1;
        EXPECT_EQ(nvmlDeviceGetNvLinkState(device(i), links, &active),
                  links > 0 ? SOFTDEV_NVML_SUCCESS : SOFTDEV_NVML_NOT_SUPPORTED);
        EXPECT_EQ(active, 0);
    }
}

TEST_F(Nvml, HasNoFabricAndNoSecrets) {
    softdev_nvml_fabric fabric = {};
    fabric.version = 2;
    fabric.state = 3;
    EXPECT_EQ(nvmlDeviceGetGpuFabricInfoV(device(0), &fabric), SOFTDEV_NVML_SUCCESS);
    EXPECT_EQ(fabric.state, 0);
    softdev_nvml_confidential_settings settings = {};
    settings.feature = 1;
    EXPECT_EQ(nvmlSystemGetConfComputeSettings(&settings), SOFTDEV_NVML_SUCCESS);
    EXPECT_EQ(settings.feature, 0u);
    int major = 0;
    int minor = 0;
    EXPECT_EQ(nvmlDeviceGetCudaComputeCapability(device(0), &major, &minor), SOFTDEV_NVML_SUCCESS);
    EXPECT_EQ(major * 10 + minor, 86);
    int status = 1;
    EXPECT_EQ(nvmlDeviceGetP2PStatus(device(0), device(1), 0, &status), SOFTDEV_NVML_SUCCESS);
    EXPECT_EQ(status, 0);
}

}  // namespace
