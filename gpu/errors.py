# ruff: noqa: N818 -- a refusal is named after what is wrong, as its rule is
"""What a worker refuses on its device and among its peers, with the values that led to it."""

from __future__ import annotations

from kvcache.errors import KVCacheError


class UnknownDType(KVCacheError, ValueError):
    """A dtype is none that a cache may be kept in."""

    rule = "dtype_is_unknown"
    says = "dtype {dtype!r} is unknown; give one of {known}"
    dtype: object
    known: tuple[str, ...]


class TensorIsNoPages(KVCacheError, ValueError):
    """A layer's memory cannot be divided into its pages."""

    rule = "tensor_is_no_whole_pages"
    says = (
        "a {dtype} tensor of shape {shape} cannot be read as pages; give a contiguous "
        "one-dimensional uint8 tensor of 1 or more whole pages of {page_size_bytes} bytes"
    )
    dtype: str
    shape: tuple[int, ...]
    page_size_bytes: int


class LayersWithoutTensors(KVCacheError, ValueError):
    """The layers of a configuration are not the layers that there are tensors for."""

    rule = "layers_and_tensors_differ"
    says = "layers {layers} are in the configuration or have a tensor, not both; give both"
    layers: tuple[str, ...]


class TensorsOverlap(KVCacheError, ValueError):
    """Two layers would write over one another."""

    rule = "tensors_overlap"
    says = "layers {layer!r} and {other_layer!r} share memory; give each layer a tensor of its own"
    layer: str
    other_layer: str


class TooFewBlocksInTensor(KVCacheError, ValueError):
    """A configuration promises blocks that this worker has not got."""

    rule = "config_asks_for_more_blocks_than_the_tensor_holds"
    says = (
        "worker {rank}, layer {layer!r}: the configuration has {num_blocks} blocks and the tensor "
        "holds {num_local_blocks}; unify the configurations of all workers before they are used"
    )
    rank: int
    layer: str
    num_blocks: int
    num_local_blocks: int


class BlockIdNotValid(KVCacheError, IndexError):
    """A block id is none that all workers have."""

    rule = "block_id_is_not_valid_on_every_worker"
    says = (
        "worker {rank}: block {block_id} is none of the {num_blocks} blocks that all workers have"
    )
    rank: int
    block_id: int
    num_blocks: int


class NoSuchLayer(KVCacheError, KeyError):
    """A layer is none of this worker's."""

    rule = "no_such_layer"
    says = "worker {rank} has no layer {layer!r}; its layers are {layers}"
    rank: int
    layer: str
    layers: tuple[str, ...]

    # A KeyError shows its argument in quotes, which makes a sentence hard to read.
    __str__ = Exception.__str__


class DeviceMemoryExhausted(KVCacheError, RuntimeError):
    """The device has not got the memory that the plan counts on."""

    rule = "device_memory_is_exhausted"
    says = (
        "layer {layer!r}: {size_bytes} bytes cannot be had on {device} after {taken_bytes} bytes "
        "for the layers before it; lower gpu_memory_utilization, or see what else uses the device"
    )
    layer: str
    size_bytes: int
    device: str
    taken_bytes: int


class InvalidUtilization(KVCacheError, ValueError):
    """A share of the memory is none."""

    rule = "gpu_memory_utilization_is_out_of_range"
    says = (
        "gpu_memory_utilization={gpu_memory_utilization!r} is no share; give more than 0 and at "
        "most 1"
    )
    gpu_memory_utilization: object


class ImpossibleMemory(KVCacheError, ValueError):
    """A number of bytes cannot be."""

    rule = "memory_figure_is_impossible"
    says = "{name}={value!r}: give a whole number from {least} to {most}"
    name: str
    value: object
    least: int
    most: int


class NoMemoryFigures(KVCacheError, RuntimeError):
    """The system does not say what a process uses."""

    rule = "system_gives_no_memory_figures"
    says = "{path} does not give {wanted}; set num_gpu_blocks_override instead of measuring"
    path: str
    wanted: str


class InvalidWorkerGroup(KVCacheError, ValueError):
    """A worker's place among its peers is impossible."""

    rule = "worker_group_is_invalid"
    says = (
        "rank={rank} world_size={world_size} timeout_s={timeout_s}; give a rank from 0 to "
        "world_size - 1 and a time-out of more than 0 s"
    )
    rank: int
    world_size: int
    timeout_s: float


class WorkersMissing(KVCacheError, RuntimeError):
    """Workers died or hang, and the others do not wait for them."""

    rule = "workers_are_missing"
    says = (
        "workers {ranks} of {world_size} did not answer within {timeout_s} s ({stage}): they died, "
        "hang or never started; see their logs and start all workers again"
    )
    ranks: tuple[int, ...]
    world_size: int
    timeout_s: float
    stage: str


class WorkersFailed(KVCacheError, RuntimeError):
    """All workers are there and what they did together failed."""

    rule = "workers_failed"
    says = "{stage} failed on workers {reasons}; start all workers again"
    stage: str
    reasons: dict[int, str]


class WorkerCannotPropose(KVCacheError, ValueError):
    """One worker has no configuration to propose, so none has."""

    rule = "worker_cannot_propose"
    says = "worker {rank} proposes no configuration: {refusal}"
    rank: int
    refusal: str


class InvalidLimit(KVCacheError, ValueError):
    """A limit lets no step do anything."""

    rule = "limit_is_out_of_range"
    says = "{name}={value}: give {least} or more"
    name: str
    value: int
    least: int


class PoolIsOfAnotherModel(KVCacheError, ValueError):
    """A pool's layers are not those that a model keeps."""

    rule = "pool_is_of_another_model"
    says = "the pool keeps {pool}; make it from the model's own kv_cache_config"
    pool: str


class RowsDoNotFit(KVCacheError, ValueError):
    """What is to be written has not the form of the place that it goes to."""

    rule = "rows_do_not_fit_the_pool"
    says = (
        "{name} is {dtype} {shape} on {device}; give {wanted_dtype} {wanted_shape} on "
        "{wanted_device}, as the pool has it (-1: any number)"
    )
    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    wanted_dtype: str
    wanted_shape: tuple[int, ...]
    wanted_device: str


class BackendUnavailable(KVCacheError, RuntimeError):
    """A form of the operations cannot run here."""

    rule = "backend_is_unavailable"
    says = "backend {backend!r} cannot be used: {reason}; use 'torch', which always can"
    backend: str
    reason: str


class UnknownBacking(KVCacheError, ValueError):
    """A pool cannot be kept in such memory."""

    rule = "backing_is_unknown"
    says = "backing={backing!r} on {device}: give 'torch', or 'mmap' on the CPU"
    backing: object
    device: str


class TableRowTooLong(KVCacheError, ValueError):
    """A request has more blocks than a row of the table has cells."""

    rule = "table_row_is_too_long"
    says = "row {row}: {num_blocks} blocks do not fit into {max_blocks} cells; make longer rows"
    row: int
    num_blocks: int
    max_blocks: int


class UnknownShield(KVCacheError, ValueError):
    """A shield cannot be made so."""

    rule = "shield_is_unknown"
    says = (
        "mode={mode!r} layers={layers} scrub_blocks={scrub_blocks} poll_every={poll_every}; give a "
        "mode of {modes}, layers of {known}, and 1 or more blocks and steps"
    )
    mode: object
    layers: tuple[str, ...]
    scrub_blocks: int
    poll_every: int
    modes: tuple[str, ...]
    known: tuple[str, ...]


class DriverCallFailed(KVCacheError, RuntimeError):
    """A call of the CUDA driver did not succeed."""

    rule = "driver_call_failed"
    says = "{call} gave status {status}; see CUresult in cuda.h"
    call: str
    status: int
