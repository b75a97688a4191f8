/* Tells a compute sanitizer which blocks of a pool may be written now, through NVTX's memory API.
 *
 * The pool is a heap, each block of a plane a region, and a region is readable or writable for the
 * whole process. Without a tool that listens every call does nothing, and kvspec_open says so.
 * Compiled by gpu/traps_cuda.py: cc -shared -fPIC, with the headers of a CUDA toolkit. */

#include <nvtx3/nvToolsExtMem.h>
#include <nvtx3/nvToolsExtMemCudaRt.h>

static nvtxDomainHandle_t domain;
static nvtxMemPermissionsHandle_t permissions;

/* 1 where a tool listens, 0 where none does. */
int kvspec_open(void)
{
    domain = nvtxDomainCreateA("kvspec");
    permissions = nvtxMemCudaGetProcessWidePermissions(domain);
    return domain != NULL || permissions != NULL;
}

/* Make one allocation a heap of num_blocks regions of block_bytes each. */
void kvspec_register(const char *memory, size_t num_blocks, size_t block_bytes)
{
    nvtxMemVirtualRangeDesc_t range = {0};
    range.size = num_blocks * block_bytes;
    range.ptr = memory;

    nvtxMemHeapDesc_t heap = {0};
    heap.extCompatID = NVTX_EXT_COMPATID_MEM;
    heap.structSize = sizeof heap;
    heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    heap.typeSpecificDescSize = sizeof range;
    heap.typeSpecificDesc = &range;
    nvtxMemHeapHandle_t handle = nvtxMemHeapRegister(domain, &heap);

    for (size_t block = 0; block < num_blocks; ++block) {
        nvtxMemVirtualRangeDesc_t region = {0};
        region.size = block_bytes;
        region.ptr = memory + block * block_bytes;

        nvtxMemRegionsRegisterBatch_t batch = {0};
        batch.extCompatID = NVTX_EXT_COMPATID_MEM;
        batch.structSize = sizeof batch;
        batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
        batch.heap = handle;
        batch.regionCount = 1;
        batch.regionDescElementSize = sizeof region;
        batch.regionDescElements = &region;
        nvtxMemRegionsRegister(domain, &batch);
    }
}

/* Say whether the region that begins at this address may be written; reading stays allowed. */
void kvspec_permit(const char *block, int may_write)
{
    nvtxMemPermissionsAssignRegionDesc_t region = {0};
    region.flags = NVTX_MEM_PERMISSIONS_REGION_FLAGS_READ;
    if (may_write)
        region.flags |=
            NVTX_MEM_PERMISSIONS_REGION_FLAGS_WRITE | NVTX_MEM_PERMISSIONS_REGION_FLAGS_ATOMIC;
    region.regionRefType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    region.region.pointer = block;

    nvtxMemPermissionsAssignBatch_t batch = {0};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof batch;
    batch.permissions = permissions;
    batch.regionCount = 1;
    batch.regionElementSize = sizeof region;
    batch.regionElements = &region;
    nvtxMemPermissionsAssign(domain, &batch);
}
