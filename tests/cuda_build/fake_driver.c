/* Stands in for NVIDIA's libcuda and NVML: eight H100 are listed, and no kernel can run. Built twice,
   as libcuda.so.1 and as libnvidia-ml.so.1. Every CUDA call fails but the version's. */
#include <stdio.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory;

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
#define FAILS(name) int name() { return 100; /* CUDA_ERROR_NO_DEVICE */ }
FAILS(cuInit) FAILS(cuGetProcAddress) FAILS(cuGetProcAddress_v2) FAILS(cuGetErrorString)
FAILS(cuGetErrorName) FAILS(cuDeviceGet) FAILS(cuDeviceGetCount) FAILS(cuDeviceGetAttribute)
FAILS(cuDevicePrimaryCtxRetain) FAILS(cuCtxGetCurrent) FAILS(cuCtxSetCurrent) FAILS(cuCtxGetDevice)
FAILS(cuPointerGetAttribute) FAILS(cuTensorMapEncodeTiled) FAILS(cuFuncSetAttribute)
FAILS(cuLaunchKernel) FAILS(cuLaunchKernelEx) FAILS(cuModuleLoadData) FAILS(cuModuleUnload)
FAILS(cuModuleGetFunction) FAILS(cuLibraryLoadData) FAILS(cuLibraryUnload)
FAILS(cuLibraryGetKernel) FAILS(cuKernelGetFunction) FAILS(cuMemCreate) FAILS(cuMemRelease)
FAILS(cuMemMap) FAILS(cuMemUnmap) FAILS(cuMemSetAccess) FAILS(cuMemAddressReserve)
FAILS(cuMemAddressFree) FAILS(cuMemGetAllocationGranularity) FAILS(cuFuncGetAttribute)
FAILS(cuFuncSetCacheConfig) FAILS(cuCtxGetLimit) FAILS(cuCtxSetLimit)

int nvmlInit() { return 0; }
int nvmlInit_v2() { return 0; }
int nvmlInitWithFlags(int flags) { return 0; }
int nvmlShutdown() { return 0; }
const char *nvmlErrorString(int code) { return "there is no GPU"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(index + 1L); return index < 8 ? 0 : 2; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)1L; return 0; }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (unsigned)((long)device - 1); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { snprintf(name, size, "NVIDIA H100 80GB HBM3"); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { snprintf(uuid, size, "GPU-0"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory *found) { found->total = found->free = 81559ULL << 20; found->used = 0; return 0; }
int nvmlDeviceGetP2PStatus(void *one, void *other, int kind, int *status) { *status = 0; return 0; }
int nvmlDeviceGetNumaNodeId(void *device, unsigned *node) { return 3; }
int nvmlDeviceGetCpuAffinity(void *device, unsigned size, unsigned long *mask) { memset(mask, 0, size * sizeof *mask); mask[0] = 1; return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { snprintf(version, size, "580.95.05"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
