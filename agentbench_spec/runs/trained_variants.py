"""What to train for the tables that compare drafters nobody publishes, as commands that can be run as they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentbench_spec.results.paper import TableName

PAPER_TARGET = "Qwen/Qwen3-8B"
"""Target of the paper's table 5."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One drafter of such a table."""

    folder: str
    """Where its checkpoint goes."""
    arguments: str
    """Of `agentbench-spec train dlite`."""
    drafter: str = "dlite"
    """Drafter that loads what comes out."""

    def command(self, target: str) -> str:
        """The command that trains it."""
        return f"agentbench-spec train dlite --target {target} --data TEXTS.jsonl --out {self.folder} {self.arguments}"


VARIANTS: dict[TableName, tuple[Variant, ...]] = {
    "table5": (
        Variant("published", "--option slots=14 --option rank=512"),
        Variant("slots7", "--option slots=7 --option rank=512"),
        Variant("rank256", "--option slots=14 --option rank=256"),
        Variant("depth3", "--option slots=14 --option rank=512 --option depth=3"),
    ),
    "figure4b": (
        Variant("ce", "--single-stage --option loss=ce --option slots=14 --option rank=512"),
        Variant("kl", "--single-stage --option loss=kl_target --option slots=14 --option rank=512"),
    ),
    "figure5": (
        Variant(
            "window128", "--option role=teacher --option window=128 --option slots=14 --option rank=512", "dlite_window"
        ),
        Variant(
            "window512", "--option role=teacher --option window=512 --option slots=14 --option rank=512", "dlite_window"
        ),
        Variant("none", "--single-stage --option slots=14 --option rank=512"),
        Variant("two_stage", "--option slots=14 --option rank=512"),
    ),
}
_WHY: dict[TableName, str] = {
    "table5": "compares DLite drafters of different designs, trained on 80,000 samples; none but the final design is "
    "published, and which ones its rows are is not known to us; slots, rank, depth, group and block_size can be varied",
    "figure4b": "compares a DLite student trained by KL from the target's own distribution with one trained by "
    "cross-entropy, over training; neither is published, and which options they have is not known to us",
    "figure5": "compares drafters that see a window of 128 or 512 KV positions with one that sees none, in one stage "
    "and in two, and none of them is published",
}


def run_command(variants: Sequence[Variant], target: str) -> str:
    """The command that compares trained variants on the same turns."""
    drafters = " ".join(f"--drafter {own.drafter}={own.folder}" for own in variants)
    return f"agentbench-spec run --target {target} --workload bfcl_v3 {drafters}"


def needs_training(table: TableName, target: str = PAPER_TARGET) -> str | None:
    """Why a table cannot be reproduced by a run, and the commands that train what it needs; None: it can."""
    return " ".join(_words(table, target)) if table in VARIANTS else None


def _words(table: TableName, target: str) -> Iterator[str]:
    variants = VARIANTS[table]
    yield f"{table} {_WHY[table]}: train each,"
    yield ", ".join(f"`{own.command(target)}`" for own in variants)
    yield "(TEXTS.jsonl: rollouts or conversations), then compare them on the same turns:"
    yield f"`{run_command(variants, target)}`."
    yield f"`agentbench-spec reproduce {table} --embedded` trains and compares small ones"
