"""Row bookkeeping of EAGLE-3: chunks, ragged batches, rollback, rewritten history, and what it costs in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eagle3_kit as kit
import eagle3_writers as write
import pytest
import torch
from agentbench_spec_drafters.eagle3 import Eagle3Drafter, make
from chain_rows_kit import Probing, Text, drafted, feed, span
from torch import Tensor

from agentbench_spec.drafting import ContractError, Span

ONE, OTHER = Text.random(90, 1, taps=5), Text.random(90, 2, taps=5)


@pytest.fixture(params=["qk_norm", "plain"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The golden head, and the same without per-head norms (as Llama-type heads are)."""
    if request.param == "qk_norm":
        return kit.DRAFT
    plain = {name: tensor for name, tensor in write.HEAD.items() if "q_norm" not in name and "k_norm" not in name}
    return write.write_midlayer(tmp_path / "plain", plain)


def opened(head: Path, *, rows: int = 1, capacity: int = 100, **options: Any) -> Eagle3Drafter:
    drafter = make(head, **options)
    kit.opened(drafter, rows=rows, capacity=capacity).sampler = Probing()
    return drafter


def fresh(head: Path, text: Text, at: int, anchor: int, k: int = 5) -> Tensor:
    """What a drafter that saw this text once, in one piece, proposes at `at`."""
    drafter = opened(head)
    feed(drafter, text, at, chunk=at)
    return drafted(drafter, [anchor], [at], k)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def same_state(drafter: Eagle3Drafter, head: Path, text: Text, length: int) -> None:
    """The committed state is that of a drafter which saw the text at once (not only the proposals)."""
    other = opened(head)
    feed(other, text, length, chunk=length)
    ours, theirs = drafter.snapshot(0), other.snapshot(0)
    assert ours.keys() == theirs.keys() and ours["keys"].shape[1] == length - 1
    for name, tensor in ours.items():
        close(tensor, theirs[name])


@pytest.mark.parametrize("chunk", [1, 2, 7, 63])
def test_chunks_equal_one_prefill(head: Path, chunk: int) -> None:
    """The pair across a chunk border must be the same as inside one."""
    drafter = opened(head)
    feed(drafter, ONE, 64, chunk=chunk)
    close(drafted(drafter, [9], [64]), fresh(head, ONE, 64, 9))


def test_ragged_rows_equal_single_rows(head: Path) -> None:
    """Four rows of different length, in two padded spans in another row order, each equal to the row alone."""
    texts = [Text.random(90, seed, taps=5) for seed in range(4)]
    lengths, order = [5, 33, 1, 70], [2, 0, 3, 1]
    drafter = opened(head, rows=4)
    for begin in (0, 40):
        count = [max(0, min(lengths[row], begin + 40) - begin) for row in order]
        drafter.observe(span([texts[row] for row in order], order, [begin] * 4, count, 40))
    batch = drafted(drafter, [11, 12, 13, 14], lengths)
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        close(batch[row : row + 1], fresh(head, text, length, 11 + row))


def test_idle_rows_keep_their_state(head: Path) -> None:
    """A row at position -1, or with count 0, must be untouched by what happens in the others."""
    drafter = opened(head, rows=2)
    feed(drafter, ONE, 20, row=0)
    feed(drafter, OTHER, 20, row=1)
    for at in range(20, 50, 2):
        drafted(drafter, [3, int(ONE.tokens[at])], [-1, at])
        drafter.observe(span([OTHER, OTHER], [0, 1], [0, at], [0, 2], 6))
    close(drafted(drafter, [9, 0], [20, -1])[:1], fresh(head, ONE, 20, 9))


def test_propose_leaves_no_trace(head: Path) -> None:
    """Asked twice it answers the same bit for bit, and another anchor or k in between changes nothing."""
    drafter = opened(head)
    feed(drafter, ONE, 30)
    first = drafted(drafter, [4], [30])
    drafted(drafter, [77], [30], 7)
    assert torch.equal(first, drafted(drafter, [4], [30]))
    close(drafted(drafter, [77], [30]), fresh(head, ONE, 30, 77))


def test_rewritten_history_equals_fresh(head: Path) -> None:
    """Five turns, each cut back by little or much and continued with other tokens, the one after the cut included."""
    drafter, text = opened(head), ONE
    for turn, (cut, until) in enumerate([(0, 40), (38, 60), (12, 55), (1, 30), (29, 80)]):
        drafter.truncate(0, cut)
        text = text.rewritten(cut, Text.random(90, 10 + turn, taps=5))
        feed(drafter, text, until, start=cut, chunk=9)
        close(drafted(drafter, [5], [until]), fresh(head, text, until, 5))
        same_state(drafter, head, text, until)


def test_history_rewritten_beyond_the_window_equals_fresh(head: Path) -> None:
    """As the engine cuts: it runs the last shared token again, so the token after the cut is the same as before."""
    drafter, text = opened(head, window=6), ONE
    for turn, (cut, until) in enumerate([(0, 40), (12, 55), (1, 30), (20, 80)]):
        drafter.truncate(0, cut)
        text = text.rewritten(cut + 1, Text.random(90, 10 + turn, taps=5))
        feed(drafter, text, until, start=cut, chunk=9)
        close(drafted(drafter, [5], [until]), fresh(head, text, until, 5))
        same_state(drafter, head, text, until)


def test_continuation_thrown_away_is_drafted_again_with_any_anchor(head: Path) -> None:
    """Back at the start of the turn, with no span in between: the old and another anchor both draft as at first."""
    drafter = opened(head)
    feed(drafter, ONE, 30)
    feed(drafter, ONE, 60, start=30, chunk=3)
    drafter.truncate(0, 30)
    close(drafted(drafter, [int(ONE.tokens[30])], [30]), fresh(head, ONE, 30, int(ONE.tokens[30])))
    close(drafted(drafter, [8], [30]), fresh(head, ONE, 30, 8))


def test_no_guess_where_the_feature_is_gone(head: Path) -> None:
    """Cut back beyond the window and asked at once, the drafter says nothing rather than something wrong."""
    drafter = opened(head, window=6)
    feed(drafter, ONE, 60)
    drafter.truncate(0, 20)
    count = drafter.propose(torch.tensor([5]), torch.tensor([20]), 4).count
    assert count is not None and count.tolist() == [0]
    text = ONE.rewritten(21, OTHER)
    feed(drafter, text, 22, start=20)
    count = drafter.propose(torch.tensor([5]), torch.tensor([22]), 4).count
    assert count is None or count.tolist() == [4]
    close(drafted(drafter, [5], [22]), fresh(head, text, 22, 5))


def test_an_earlier_span_voids_what_was_there(head: Path) -> None:
    """A span that starts before the end, without a truncate, replaces the rest of the text."""
    drafter = opened(head)
    feed(drafter, ONE, 50)
    text = ONE.rewritten(31, OTHER)
    feed(drafter, text, 40, start=31)
    close(drafted(drafter, [5], [40]), fresh(head, text, 40, 5))


def test_shorter_chains_are_prefixes_and_longer_ones_fit(head: Path, tmp_path: Path) -> None:
    """Step j does not depend on k; a layout without a trained length takes a chain longer than the scratch space."""
    drafter = opened(head)
    feed(drafter, ONE, 30)
    assert drafter.propose(torch.tensor([5]), torch.tensor([30]), 0).ids.shape == (1, 0)
    close(drafted(drafter, [5], [30], 1), drafted(drafter, [5], [30], 7)[:, :1])
    long = opened(write.write_midlayer(tmp_path / "long", dict(write.HEAD)), capacity=31)
    feed(long, ONE, 30)
    assert long.spec.max_tokens is None
    close(drafted(long, [5], [30], 40)[:, :7], drafted(long, [5], [30], 7))


def test_stop_ids_end_a_proposal(head: Path) -> None:
    """The count ends with the first stop id drafted, is k for a row that drafts none, and the ids stay as they were."""
    drafter = opened(head, rows=2)
    for row, text in enumerate((ONE, OTHER)):
        feed(drafter, text, 30, row=row)
    anchors, positions = torch.tensor([5, 5]), torch.tensor([30, 30])
    ids = drafter.propose(anchors, positions, 7).ids
    stop = next(token for token in ids[0].tolist()[1:] if token not in ids[1].tolist() and token != int(ids[0, 0]))
    stopping = opened(head, rows=2, stop_ids=str(stop))
    for row, text in enumerate((ONE, OTHER)):
        feed(stopping, text, 30, row=row)
    proposal = stopping.propose(anchors, positions, 7)
    assert proposal.count is not None and proposal.count.tolist() == [ids[0].tolist().index(stop) + 1, 7]
    assert torch.equal(proposal.ids, ids)


def test_state_bytes_follow_the_config(head: Path) -> None:
    """Two tensors of one layer's KV heads per position, linear in the text, back to 0 when it is cut."""
    drafter = opened(head, rows=2)
    geometry = drafter.net.geometry
    each = 2 * geometry.num_kv_heads * geometry.head_dim * 4
    for length in (20, 40, 80):
        drafter.truncate(1, 0)
        feed(drafter, ONE, length, row=1)
        assert drafter.state_bytes(1) == length * each
    drafter.truncate(1, 0)
    assert drafter.state_bytes(1) == 0 and drafter.state_bytes(0) == 0


def test_span_without_states_is_an_error() -> None:
    """The engine must deliver what the spec asked for; drafting from nothing would only look weak."""
    whole = span([ONE], [0], [0], [4], 4)
    blind = Span(whole.rows, whole.start, whole.count, whole.input_ids, whole.next_ids)
    with pytest.raises(ContractError, match="scope"):
        opened(kit.DRAFT).observe(blind)


def test_nothing_waits_for_the_device() -> None:
    """On a device whose values cannot be read (meta), observe and propose run: no .item(), no branch on a tensor."""
    meta = torch.device("meta")
    drafter = make(kit.DRAFT, stop_ids=[1, 2])
    kit.opened(drafter, rows=2, target=kit.target_info(device=meta))
    whole = span([ONE, OTHER], [0, 1], [0, 0], [9, 4], 12)
    parts = (whole.rows, whole.start, whole.count, whole.input_ids, whole.next_ids, whole.hidden)
    drafter.observe(Span(*(part.to(meta) for part in parts if part is not None)))
    proposal = drafter.propose(torch.zeros(2, dtype=torch.int64, device=meta), torch.tensor([9, 4]).to(meta), 5)
    assert proposal.ids.shape == (2, 5) and proposal.ids.device == meta
    with pytest.raises(RuntimeError, match="meta"):
        proposal.ids.tolist()  # the control: reading a value here does raise


def test_positions_beyond_the_trained_window_are_rotated_not_clipped() -> None:
    """The same text far beyond max_position_embeddings drafts the same: only differences of positions matter (1.4)."""
    drafter = opened(kit.DRAFT, capacity=4000)
    assert drafter.spec.max_positions == 2048
    rope = drafter.net.rope
    drafter.net.rope = lambda positions: rope(positions + 3000)  # type: ignore[method-assign]
    feed(drafter, ONE, 30)
    torch.testing.assert_close(drafted(drafter, [5], [30]), fresh(kit.DRAFT, ONE, 30, 5), atol=1e-4, rtol=1e-2)
