"""Every public trace has a source and a checksum, so that a golden number has one meaning.

Run as `make traces`: it says where the files come from and verifies the ones that are there.
Nothing is fetched, because not every machine reaches a network. Needs the standard library only.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "KVSPEC_TRACES"


class Source(NamedTuple):
    """A folder of a public repository at a commit, and the files that are used of it."""

    folder: str
    """The folder's name under $KVSPEC_TRACES."""
    repository: str
    commit: str
    path: str
    """The folder in the repository."""
    licence: str
    files: tuple[tuple[str, int, str], ...]
    """Name, size in bytes and sha256 of each file."""


SOURCES: Final = (
    Source(
        "mooncake",
        "kvcache-ai/Mooncake",
        "3b5a594",
        "FAST25-release/traces",
        "Apache-2.0",
        (
            (
                "conversation_trace.jsonl",
                3029533,
                "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
            ),
            (
                "synthetic_trace.jsonl",
                1136313,
                "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
            ),
        ),
    ),
    Source(
        "kv-cache-tester",
        "callanjfox/kv-cache-tester",
        "94f6046",
        "traces",
        "Apache-2.0",
        (
            (
                "trace_0002.json",
                103800,
                "09912e673c0a8fb83db91c52aca6de5418ed179e6be313b72a8d5e23f3f9eaf7",
            ),
            (
                "trace_0034.json",
                72100,
                "673ad282e34b2053370fb1c245db3604fa20da89f1e345186d936a36861bf3be",
            ),
            (
                "trace_0060.json",
                99276,
                "fcca8279384167df1990e5eaf0b2d7e87f1993b369cf9aa962a3bd36e071da4b",
            ),
            (
                "trace_0080.json",
                51357,
                "ce0b0d68983bd3b212d2659fa5f015f62b3fccf64b0f6fcac3950c202a08bed7",
            ),
            (
                "trace_0095.json",
                25303,
                "e9c1cfe167b95a29ef1095d1391543d44db00d71092541b4e07b91542b5d48e1",
            ),
            (
                "trace_0112.json",
                50084,
                "d8c17f3cdc09d62f1f893576423c7d7b510b3f5c5856c922d9e59d599db17ebf",
            ),
            (
                "trace_0138.json",
                100257,
                "26af61aa8f577a630d63ed1866bbc2bf4df18c6538c61060d162b18aa14983b6",
            ),
            (
                "trace_0173.json",
                80654,
                "666323075db2895e1ca3ebac283b42dfc77b6080d98e45353563288948587d25",
            ),
            (
                "trace_0201.json",
                72018,
                "5ddc07dfc99fee319bfa3da83ffec2ea70e63cc2df15f9a55e2ba915a7f3b686",
            ),
            (
                "trace_0222.json",
                91979,
                "dc9697bc51347dacf2bbbc9bac53d58efab9c92e3e59dec0bfed19fbd6e85134",
            ),
            (
                "trace_0258.json",
                55141,
                "6db5d477c5d5d7d2f4a25de9e272226d2ef755a5f4703d1a67cdd87ab039b263",
            ),
            (
                "trace_0291.json",
                163609,
                "035d48ef21ecff81233f258b5d547e6e272a3fade99bac958a40b6beeebd97c2",
            ),
            (
                "trace_0296.json",
                92334,
                "1f8de35afc9a4232c1e19ebe331f8f80b4424ba8593e4f5b758aa7a952ee6802",
            ),
            (
                "trace_0329.json",
                107863,
                "308f14835beb544f108df24008679fb363003b795e369f0509073d698e0082be",
            ),
            (
                "trace_0350.json",
                52894,
                "edfb79cb972aca51c71b9ea197dbc6d83c39674b05c78dd9de9eb329ce9cf68f",
            ),
            (
                "trace_0369.json",
                23103,
                "91f908579cf9d96bdfa21a9a29f21f9ed7d8c79e71b1b700344faa39f64d3836",
            ),
            (
                "trace_0426.json",
                104306,
                "f40e6259d6f2df4edc9bccad8d85a6ebd516fb69650f3dd7696687a1b7a8ffb5",
            ),
            (
                "trace_0456.json",
                79911,
                "f2d7c0c083894c25a63fc1fd53cf0077834dfcfecb981b1d08dd22c7722b089a",
            ),
        ),
    ),
)


def find_fault(path: Path, size: int, sha256: str) -> str | None:
    """Return why the file is not the one that was published, or None."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(content) != size:
        return f"has {len(content)} bytes, not {size}"
    found = hashlib.sha256(content).hexdigest()
    return None if found == sha256 else f"has sha256 {found}"


def describe() -> str:
    """Return where every file comes from, with its size and sha256."""
    text = [f"Traces are looked for under ${VARIABLE}, a folder of your choice:"]
    for source in SOURCES:
        text.append(
            f"\n{source.folder}/   from {source.path}/ of {source.repository} at commit "
            f"{source.commit} ({source.licence})"
        )
        text.extend(f"  {name:<26}{size:>9} bytes  sha256 {h}" for name, size, h in source.files)
    return "\n".join(text)


def verify(root: Path) -> list[str]:
    """Return what is wrong with the files under the folder, one line each."""
    return [
        f"{root / source.folder / name}: {fault}; copy {source.path}/{name} of "
        f"{source.repository} at commit {source.commit} there"
        for source in SOURCES
        for name, size, sha256 in source.files
        if (fault := find_fault(root / source.folder / name, size, sha256)) is not None
    ]


def main() -> int:
    """Print the sources and the verdict; return 1 when a file is missing or another one."""
    print(describe())
    folder = os.environ.get(VARIABLE)
    if not folder:
        print(f"\n{VARIABLE} is not set: put the files there, set it, and run this again.")
        return 0
    faults = verify(Path(folder))
    for fault in faults:
        print(fault, file=sys.stderr)
    total = sum(len(source.files) for source in SOURCES)
    print(f"\n{total - len(faults)} of {total} files in {folder} are the published ones.")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
