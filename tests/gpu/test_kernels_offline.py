"""The kernels compile for a device that is not here, without spills and with wide accesses."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu.offline import CompileFacts, as_data, compile_facts, facts_in

GPU = Path(__file__).parents[2] / "gpu"
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
WIDE = 128
MOST_REGISTERS = {
    "route_slots": 255,
    "scatter_kv": 64,
    "ms64": 64,
    "poison": 32,
    "gather_kv": 32,
    "check_identity": 64,
}
"""Of a thread; with 64 a processor of this device holds 1,024 threads. The first is alone."""


@pytest.fixture(scope="module", params=[2048, 1536, 512, 96])
def facts(request: pytest.FixtureRequest) -> tuple[int, dict[str, CompileFacts]]:
    """Return the bytes of a row, and what the kernels become."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    return request.param, compile_facts(request.param)


@pytest.mark.slow
def test_no_kernel_spills_or_takes_too_many_registers(
    facts: tuple[int, dict[str, CompileFacts]],
) -> None:
    """Every kernel is there, and all that a thread holds is in registers."""
    _, kernels = facts
    assert kernels.keys() == MOST_REGISTERS.keys()
    assert {name: one.spill_bytes for name, one in kernels.items()} == dict.fromkeys(kernels, 0)
    many = {name: one.registers for name, one in kernels.items()}
    assert {n: r for n, r in many.items() if r > MOST_REGISTERS[n]} == {}
    assert json.loads(json.dumps(as_data(kernels)))["ms64"]["registers"] == many["ms64"]


@pytest.mark.slow
def test_rows_are_read_and_written_128_bits_at_a_time(
    facts: tuple[int, dict[str, CompileFacts]],
) -> None:
    """A row that has two words for every thread of a warp; and fingerprints of every row."""
    row_bytes, kernels = facts
    long = row_bytes >= 2 * 8 * 32
    assert kernels["scatter_kv"].load_bits.get(WIDE, 0) == 2 * long
    assert kernels["scatter_kv"].store_bits.get(WIDE, 0) == 2 * long
    assert kernels["gather_kv"].load_bits.get(WIDE, 0) == long
    assert kernels["gather_kv"].store_bits.get(WIDE, 0) == long
    assert kernels["ms64"].load_bits[WIDE] > 0
    assert kernels["poison"].store_bits[WIDE] > 0


@pytest.mark.slow
@NEEDS_TRITON
def test_rows_that_are_no_whole_words_compile_too() -> None:
    """Four bytes are copied one by one."""
    kernels = compile_facts(4)
    assert {name: one.spill_bytes for name, one in kernels.items()} == dict.fromkeys(kernels, 0)
    assert kernels["scatter_kv"].store_bits[8] == 2
    assert WIDE not in kernels["ms64"].load_bits


def test_facts_are_read_from_what_compiler_and_assembler_say() -> None:
    """Lanes times bits for each access of global memory; spills are those of both directions."""
    assembly = """
        @%p1 ld.global.v2.b64 { %rd1, %rd2 }, [ %rd3 + 0 ];
        ld.global.b32 { %r1 }, [ %rd4 + 0 ];
        ld.global.L1::evict_last.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd4 + 0 ];
        st.shared.b64 [ %r9 + 0 ], %rd1;
        @%p2 st.global.b8 [ %rd5 + 0 ], { %rs1 };
    """
    said = "0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\nUsed 41 registers"
    assert facts_in(assembly, said) == CompileFacts(41, 20, {128: 2, 32: 1}, {8: 1})


@pytest.mark.parametrize("said", ["Used 41 registers", "1 bytes spill stores, 1 bytes spill loads"])
def test_an_assembler_that_does_not_say_is_no_proof(said: str) -> None:
    """Nothing said is not nothing spilled."""
    with pytest.raises(AssertionError, match="did not say"):
        facts_in("", said)


def test_one_file_imports_triton_and_nobody_imports_it_at_once() -> None:
    """Without Triton everything else can be imported and works."""
    importers, early = [], []
    for path in sorted(GPU.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                if {name.split(".")[0] for name in [module, *names]} & {"triton"}:
                    importers.append(path.name)
                if module == "gpu.kernels" or (module == "gpu" and "kernels" in names):
                    early += [path.name] * (node in tree.body)
    assert set(importers) == {"kernels.py"}
    assert early == []
