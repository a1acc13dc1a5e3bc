// SPDX-License-Identifier: Apache-2.0
// Functions that the software device does not have, and that libraries linked against libcudart
// name: PyTorch's CUDA build is not loaded without them. Whoever calls one is told "not supported".
// The parameters of none are looked at: the header's declarations are not needed.
#define SOFTDEV_NOT_SUPPORTED(name)                                            \
    extern "C" __attribute__((visibility("default"))) int name(); /* NOLINT */ \
    int name() {                                                               \
        return 801; /* cudaErrorNotSupported */                                \
    }

SOFTDEV_NOT_SUPPORTED(cudaDeviceGetDefaultMemPool)
SOFTDEV_NOT_SUPPORTED(cudaDeviceGetGraphMemAttribute)
SOFTDEV_NOT_SUPPORTED(cudaDeviceSetGraphMemAttribute)
SOFTDEV_NOT_SUPPORTED(cudaGetSymbolAddress)
SOFTDEV_NOT_SUPPORTED(cudaGraphAddNode)
SOFTDEV_NOT_SUPPORTED(cudaGraphConditionalHandleCreate)
SOFTDEV_NOT_SUPPORTED(cudaGraphNodeGetDependencies)
SOFTDEV_NOT_SUPPORTED(cudaIpcGetEventHandle)
SOFTDEV_NOT_SUPPORTED(cudaIpcOpenEventHandle)
SOFTDEV_NOT_SUPPORTED(cudaKernelSetAttributeForDevice)
SOFTDEV_NOT_SUPPORTED(cudaLaunchCooperativeKernel)
SOFTDEV_NOT_SUPPORTED(cudaLibraryGetGlobal)
SOFTDEV_NOT_SUPPORTED(cudaLibraryGetKernel)
SOFTDEV_NOT_SUPPORTED(cudaLibraryGetKernelCount)
SOFTDEV_NOT_SUPPORTED(cudaLibraryGetManaged)
SOFTDEV_NOT_SUPPORTED(cudaLibraryGetUnifiedFunction)
SOFTDEV_NOT_SUPPORTED(cudaLibraryLoadData)
SOFTDEV_NOT_SUPPORTED(cudaLibraryLoadFromFile)
SOFTDEV_NOT_SUPPORTED(cudaLibraryUnload)
SOFTDEV_NOT_SUPPORTED(cudaMemPoolSetAccess)
SOFTDEV_NOT_SUPPORTED(cudaMemcpy2DAsync)
SOFTDEV_NOT_SUPPORTED(cudaMemcpyToSymbol)
SOFTDEV_NOT_SUPPORTED(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
SOFTDEV_NOT_SUPPORTED(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
SOFTDEV_NOT_SUPPORTED(cudaProfilerStart)
SOFTDEV_NOT_SUPPORTED(cudaProfilerStop)
SOFTDEV_NOT_SUPPORTED(cudaStreamAddCallback)
SOFTDEV_NOT_SUPPORTED(cudaStreamBeginCaptureToGraph)
