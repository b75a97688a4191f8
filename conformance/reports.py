"""Reports of faults that real block managers had, by the property that broke.

Public issues, pull requests and advisories, restated in our own words in `tests/cases/`.
"""

from __future__ import annotations

REPORTS: dict[str, tuple[str, ...]] = {
    "a_block_handed_out_is_clean": ("kvcached issue 362", "ROCm/ATOM PR 902"),
    "a_block_is_free_exactly_when_nobody_holds_it": ("MinivLLM issue 70",),
    "a_hit_leaves_a_token_to_compute": ("vLLM PRs 11186 and 17999", "vLLM issue 3251"),
    "a_key_tells_the_content": ("SGLang issue 38319", "ROCm/ATOM PR 902"),
    "a_refused_call_changes_nothing": (
        "vLLM issue 11562",
        "vLLM PR 18411",
        "HF transformers PR 46117",
    ),
    "a_repeated_prompt_hits": ("LMCache issues 1139 and 1095", "vLLM PR 51875"),
    "admission_is_exact": ("vLLM PR 19031", "ROCm/ATOM PR 902"),
    "equal_keys_mean_equal_prefixes": (
        "GHSA-rm76-4mrf-v9r8",
        "GHSA-4qjh-9fv9-r85r",
        "GHSA-c65p-x677-fgj6",
        "vLLM issue 3264",
    ),
    "hits_and_new_blocks_are_disjoint": ("vLLM PR 10507, review",),
    "nothing_unwritten_is_found": (
        "TGI PR 2489",
        "vLLM PR 5364",
        "TensorRT-LLM issue 12933",
    ),
    "only_full_blocks_have_a_hash": ("vLLM PR 5188",),
    "ref_cnt_counts_the_holders": (
        "vLLM issue 1556",
        "vLLM PR 33377",
        "TensorRT-LLM issue 12560",
        "SGLang PR 27731",
    ),
    "reset_only_when_idle": ("vLLM PR 12284", "vLLM issue 17103"),
    "skipped_positions_show_null": ("vLLM PR 34568", "vLLM PRs 25431, 27673, 28047, 40019"),
    "the_free_queue_is_a_chain": ("Dynamo PR 13398, review", "UCM PR 1053"),
    "the_index_and_the_blocks_agree": ("vLLM PR 4764", "nano-vllm issue 163"),
    "the_null_block_is_inert": ("UCM PR 1053",),
    "unconfirmed_tokens_are_never_sealed": ("vLLM PR 18668",),
    "what_cannot_fit_is_refused_at_once": ("vLLM issue 39734",),
}
