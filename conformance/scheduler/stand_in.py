"""Makes a scheduler of vLLM 0.33.0 and what it is fed with, without a model or a device.

The release is loaded by name, and only when a scheduler is made: where it is not installed, all
else can be imported. Its configuration is a tree of plain namespaces that hold what is read.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, Final

from conformance.adapters import sources_0_33_0
from conformance.scheduler.script import Add, Setting

RELEASE: Final = sources_0_33_0.RELEASE

LOADED: Final = (
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.outputs",
)


@cache
def load() -> SimpleNamespace:
    """Return the release's modules by the last part of their names.

    Raises `PeerMissingError` where vLLM is not installed; warns where it is another release.
    """
    manager = sources_0_33_0.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        modules = [importlib.import_module(name) for name in LOADED]
    more = {module.__name__.rpartition(".")[2]: module for module in modules}
    return SimpleNamespace(**vars(manager), **more)


def release() -> str:
    """Return the release of vLLM that is installed."""
    return version("vllm")


def make_scheduler(setting: Setting) -> Any:  # noqa: ANN401  # the release has types, we have not
    """Return a fresh scheduler. Raises `PeerMissingError`."""
    vllm = load()
    kinds = {"sync": vllm.scheduler.Scheduler, "async": vllm.async_scheduler.AsyncScheduler}
    interface = vllm.kv_cache_interface
    attention = interface.FullAttentionSpec(
        block_size=setting.block_size, num_kv_heads=1, head_size=1, dtype=vllm.torch.float16
    )
    return kinds[setting.scheduler](
        vllm_config=configuration(setting),
        kv_cache_config=interface.KVCacheConfig(
            num_blocks=setting.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], attention)],
        ),
        structured_output_manager=SimpleNamespace(accept_tokens=lambda *_: True),
        block_size=setting.block_size,
        log_stats=False,
    )


def configuration(setting: Setting) -> SimpleNamespace:
    """Return what the scheduler reads of a `VllmConfig`."""
    absent = ("lora", "kv_events", "kv_transfer", "ec_transfer", "speculative")
    lookahead = ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")
    no = ("uses_mrope", "is_encoder_decoder", "is_diffusion", "supports_multimodal_inputs")
    in_flight = setting.max_num_batched_tokens * setting.steps_in_flight
    return SimpleNamespace(
        **{f"{name}_config": None for name in absent},
        **{f"num_{name}_tokens": 0 for name in lookahead},
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        max_in_flight_tokens=in_flight,
        max_concurrent_batches=setting.steps_in_flight,
        model_config=SimpleNamespace(
            **dict.fromkeys((*no, "return_sampling_mask"), False),
            max_model_len=setting.max_model_len,
            runner_type="generate",
        ),
        scheduler_config=_scheduler_config(setting),
        cache_config=SimpleNamespace(
            num_gpu_blocks=setting.num_gpu_blocks,
            block_size=setting.block_size,
            enable_prefix_caching=setting.enable_caching,
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        observability_config=SimpleNamespace(
            per_request_spec_decode_metrics="none", kv_cache_metrics=False
        ),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
    )


def _scheduler_config(setting: Setting) -> SimpleNamespace:
    return SimpleNamespace(
        policy=setting.policy,
        async_scheduling=setting.scheduler == "async",
        max_num_seqs=setting.max_num_seqs,
        max_num_active_seqs=None,
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_num_scheduled_tokens=None,
        long_prefill_token_threshold=setting.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=False,
        enable_chunked_prefill=setting.enable_chunked_prefill,
        scheduler_reserve_full_isl=setting.reserve_full_isl,
        prefill_schedule_interval=1,
        watermark=0.0,
    )


def make_request(event: Add, block_size: int, number: int) -> Any:  # noqa: ANN401  # as above
    """Return a request that arrived as the `number`th."""
    vllm = load()
    return vllm.request.Request(
        request_id=event.rid,
        prompt_token_ids=list(event.prompt),
        sampling_params=vllm.sampling_params.SamplingParams(max_tokens=event.max_tokens),
        pooling_params=None,
        arrival_time=float(number),
        priority=event.priority,
        block_hasher=_hasher(block_size),
    )


@cache
def _hasher(block_size: int) -> Any:  # noqa: ANN401  # as above
    vllm = load()
    return vllm.kv_cache_utils.get_request_block_hasher(block_size, vllm.hashing.sha256)


def make_output(rids: tuple[str, ...], sampled: Mapping[str, int]) -> Any:  # noqa: ANN401  # as above
    """Return what a model runner answers for a step that computed for `rids`."""
    return load().outputs.ModelRunnerOutput(
        req_ids=list(rids),
        req_id_to_index={rid: at for at, rid in enumerate(rids)},
        sampled_token_ids=[[sampled[rid]] if rid in sampled else [] for rid in rids],
    )


def carried_hash(block_hash: Any) -> Any:  # noqa: ANN401  # as above
    """Return what a block carries that was sealed under the hash of a request's block."""
    return load().kv_cache_utils.make_block_hash_with_group_id(block_hash, 0)


def aborted() -> Any:  # noqa: ANN401  # as above
    """Return the status of a request whose client gave it up."""
    return load().request.RequestStatus.FINISHED_ABORTED
