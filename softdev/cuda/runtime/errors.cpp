// SPDX-License-Identifier: Apache-2.0
// Runtime API: the last error, names and texts.
#include "softdev/cuda/runtime/runtime.h"

using softdev::runtime::thread_state;

namespace {

struct Row {
    cudaError_t error;
    const char* name;
};

constexpr Row kRows[] = {
    {cudaSuccess, "cudaSuccess"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
    {cudaErrorInitializationError, "cudaErrorInitializationError"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading"},
    {cudaErrorProfilerDisabled, "cudaErrorProfilerDisabled"},
    {cudaErrorProfilerNotInitialized, "cudaErrorProfilerNotInitialized"},
    {cudaErrorProfilerAlreadyStarted, "cudaErrorProfilerAlreadyStarted"},
    {cudaErrorProfilerAlreadyStopped, "cudaErrorProfilerAlreadyStopped"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol"},
    {cudaErrorInvalidHostPointer, "cudaErrorInvalidHostPointer"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer"},
    {cudaErrorInvalidTexture, "cudaErrorInvalidTexture"},
    {cudaErrorInvalidTextureBinding, "cudaErrorInvalidTextureBinding"},
    {cudaErrorInvalidChannelDescriptor, "cudaErrorInvalidChannelDescriptor"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection"},
    {cudaErrorAddressOfConstant, "cudaErrorAddressOfConstant"},
    {cudaErrorTextureFetchFailed, "cudaErrorTextureFetchFailed"},
    {cudaErrorTextureNotBound, "cudaErrorTextureNotBound"},
    {cudaErrorSynchronizationError, "cudaErrorSynchronizationError"},
    {cudaErrorInvalidFilterSetting, "cudaErrorInvalidFilterSetting"},
    {cudaErrorInvalidNormSetting, "cudaErrorInvalidNormSetting"},
    {cudaErrorMixedDeviceExecution, "cudaErrorMixedDeviceExecution"},
    {cudaErrorNotYetImplemented, "cudaErrorNotYetImplemented"},
    {cudaErrorMemoryValueTooLarge, "cudaErrorMemoryValueTooLarge"},
    {cudaErrorStubLibrary, "cudaErrorStubLibrary"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver"},
    {cudaErrorCallRequiresNewerDriver, "cudaErrorCallRequiresNewerDriver"},
    {cudaErrorInvalidSurface, "cudaErrorInvalidSurface"},
    {cudaErrorDuplicateVariableName, "cudaErrorDuplicateVariableName"},
    {cudaErrorDuplicateTextureName, "cudaErrorDuplicateTextureName"},
    {cudaErrorDuplicateSurfaceName, "cudaErrorDuplicateSurfaceName"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable"},
    {cudaErrorIncompatibleDriverContext, "cudaErrorIncompatibleDriverContext"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration"},
    {cudaErrorPriorLaunchFailure, "cudaErrorPriorLaunchFailure"},
    {cudaErrorLaunchMaxDepthExceeded, "cudaErrorLaunchMaxDepthExceeded"},
    {cudaErrorLaunchFileScopedTex, "cudaErrorLaunchFileScopedTex"},
    {cudaErrorLaunchFileScopedSurf, "cudaErrorLaunchFileScopedSurf"},
    {cudaErrorSyncDepthExceeded, "cudaErrorSyncDepthExceeded"},
    {cudaErrorLaunchPendingCountExceeded, "cudaErrorLaunchPendingCountExceeded"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction"},
    {cudaErrorNoDevice, "cudaErrorNoDevice"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
    {cudaErrorDeviceNotLicensed, "cudaErrorDeviceNotLicensed"},
    {cudaErrorSoftwareValidityNotEstablished, "cudaErrorSoftwareValidityNotEstablished"},
    {cudaErrorStartupFailure, "cudaErrorStartupFailure"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed"},
    {cudaErrorUnmapBufferObjectFailed, "cudaErrorUnmapBufferObjectFailed"},
    {cudaErrorArrayIsMapped, "cudaErrorArrayIsMapped"},
    {cudaErrorAlreadyMapped, "cudaErrorAlreadyMapped"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice"},
    {cudaErrorAlreadyAcquired, "cudaErrorAlreadyAcquired"},
    {cudaErrorNotMapped, "cudaErrorNotMapped"},
    {cudaErrorNotMappedAsArray, "cudaErrorNotMappedAsArray"},
    {cudaErrorNotMappedAsPointer, "cudaErrorNotMappedAsPointer"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable"},
    {cudaErrorUnsupportedLimit, "cudaErrorUnsupportedLimit"},
    {cudaErrorDeviceAlreadyInUse, "cudaErrorDeviceAlreadyInUse"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported"},
    {cudaErrorInvalidPtx, "cudaErrorInvalidPtx"},
    {cudaErrorInvalidGraphicsContext, "cudaErrorInvalidGraphicsContext"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable"},
    {cudaErrorJitCompilerNotFound, "cudaErrorJitCompilerNotFound"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion"},
    {cudaErrorJitCompilationDisabled, "cudaErrorJitCompilationDisabled"},
    {cudaErrorUnsupportedExecAffinity, "cudaErrorUnsupportedExecAffinity"},
    {cudaErrorUnsupportedDevSideSync, "cudaErrorUnsupportedDevSideSync"},
    {cudaErrorContained, "cudaErrorContained"},
    {cudaErrorInvalidSource, "cudaErrorInvalidSource"},
    {cudaErrorFileNotFound, "cudaErrorFileNotFound"},
    {cudaErrorSharedObjectSymbolNotFound, "cudaErrorSharedObjectSymbolNotFound"},
    {cudaErrorSharedObjectInitFailed, "cudaErrorSharedObjectInitFailed"},
    {cudaErrorOperatingSystem, "cudaErrorOperatingSystem"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState"},
    {cudaErrorLossyQuery, "cudaErrorLossyQuery"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound"},
    {cudaErrorNotReady, "cudaErrorNotReady"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout"},
    {cudaErrorLaunchIncompatibleTexturing, "cudaErrorLaunchIncompatibleTexturing"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled"},
    {cudaErrorSetOnActiveProcess, "cudaErrorSetOnActiveProcess"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed"},
    {cudaErrorAssert, "cudaErrorAssert"},
    {cudaErrorTooManyPeers, "cudaErrorTooManyPeers"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge"},
    {cudaErrorTensorMemoryLeak, "cudaErrorTensorMemoryLeak"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch"},
    {cudaErrorCompatNotSupportedOnDevice, "cudaErrorCompatNotSupportedOnDevice"},
    {cudaErrorMpsConnectionFailed, "cudaErrorMpsConnectionFailed"},
    {cudaErrorMpsRpcFailure, "cudaErrorMpsRpcFailure"},
    {cudaErrorMpsServerNotReady, "cudaErrorMpsServerNotReady"},
    {cudaErrorMpsMaxClientsReached, "cudaErrorMpsMaxClientsReached"},
    {cudaErrorMpsMaxConnectionsReached, "cudaErrorMpsMaxConnectionsReached"},
    {cudaErrorMpsClientTerminated, "cudaErrorMpsClientTerminated"},
    {cudaErrorCdpNotSupported, "cudaErrorCdpNotSupported"},
    {cudaErrorCdpVersionMismatch, "cudaErrorCdpVersionMismatch"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread"},
    {cudaErrorTimeout, "cudaErrorTimeout"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure"},
    {cudaErrorExternalDevice, "cudaErrorExternalDevice"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize"},
    {cudaErrorFunctionNotLoaded, "cudaErrorFunctionNotLoaded"},
    {cudaErrorInvalidResourceType, "cudaErrorInvalidResourceType"},
    {cudaErrorInvalidResourceConfiguration, "cudaErrorInvalidResourceConfiguration"},
    {cudaErrorUnknown, "cudaErrorUnknown"},
    {cudaErrorApiFailureBase, "cudaErrorApiFailureBase"},
};

}  // namespace

cudaError_t CUDARTAPI cudaGetLastError(void) {
    const cudaError_t error = thread_state().last_error;
    thread_state().last_error = cudaSuccess;
    return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError(void) {
    return thread_state().last_error;
}

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
    for (const Row& row : kRows) {
        if (row.error == error) {
            return row.name;
        }
    }
    return "unrecognized error code";
}

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaErrorInvalidConfiguration:
            return "invalid configuration argument";
        case cudaErrorInvalidDeviceFunction:
            return "invalid device function";
        case cudaErrorInvalidMemcpyDirection:
            return "invalid copy direction for memcpy";
        case cudaErrorMissingConfiguration:
            return "__global__ function call is not configured";
        case cudaErrorInsufficientDriver:
            return "CUDA driver version is insufficient for CUDA runtime version";
        default:
            break;
    }
    const char* text = nullptr;
    if (cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS) {
        return text;
    }
    return cudaGetErrorName(error);
}
