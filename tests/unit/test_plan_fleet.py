"""The fleet estimate: its simulation against formulas of queues and against recorded passes, and what it tells."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from statistics import fmean

import pytest
from reportkit import timed, two_rollouts, write_run
from runkit import call

import agentbench_spec as ab
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, read_rows
from agentbench_spec.runs.scale.fleet import Asked, by_context, check_passes, most_sessions, needs, with_mix
from agentbench_spec.runs.scale.service import Service, Slowdown, TurnService, services_of, slowdowns
from agentbench_spec.runs.scale.simulation import simulate, simulate_pass

RESULTS = Path(__file__).parents[2] / "results"
pytest.importorskip("simpy", reason="needs simpy: pip install 'agentbench-spec[fleet]'")


def serving(turn_s: float, *, rounds: int = 1, slowdown: Slowdown | None = None, method: str = "none") -> Service:
    """A method whose turns all take `turn_s` on an idle GPU, without a prefill."""
    turn = TurnService(1000, 0.0, rounds, turn_s / rounds, 10)
    return Service(method, ((turn,), (turn,)), slowdown or Slowdown())


# the simulation


def test_one_session_gets_what_it_asks_for() -> None:
    """Gaps are exponential, and one shorter than the turn is stretched to it: E[max(G, s)] = s + m exp(-s / m)."""
    seen = simulate(serving(1.0), 1, 10.0, turns=8000, seed=1)
    assert seen.kept_up == pytest.approx(10 / (1 + 10 * math.exp(-0.1)), rel=0.02)


def test_a_full_gpu_serves_as_fast_as_it_can_and_no_faster() -> None:
    """100 sessions ask for 10 turns a second of 1 s each. Fails if work is lost, or done twice at a time."""
    seen = simulate(serving(1.0), 100, 10.0, turns=3000, seed=1)
    first, last = seen.requests[0], seen.requests[-1]
    assert (last.done_s - first.done_s) / (len(seen.requests) - 1) == pytest.approx(1.0)


def test_waiting_is_that_of_the_queue_formula() -> None:
    """Many sessions that seldom ask are a Poisson stream: M/D/1 at half load waits half a turn (Khinchine)."""
    seen = simulate(serving(1.0, rounds=4), 400, 800.0, turns=12000, seed=3)
    waits = [request.first_s - request.asked_s for request in seen.requests]
    assert fmean(waits) == pytest.approx(0.5, rel=0.15)


def test_a_batch_that_costs_nothing_is_as_many_gpus() -> None:
    """Four rows at the time of one serve four times as much. Fails if rows wait for each other, or are not filled."""
    free = Slowdown(((1.0, 1.0), (4.0, 1.0)), 4)
    seen = simulate(serving(1.0, rounds=5, slowdown=free), 200, 10.0, turns=4000, seed=1)
    spent = seen.requests[-1].done_s - seen.requests[0].done_s
    assert len(seen.requests) / spent == pytest.approx(4.0, rel=0.05)


def test_a_pass_takes_the_time_that_can_be_reckoned_by_hand() -> None:
    """Three turns of 4, 2 and 2 rounds on two rows. Fails if a row stays empty, or a step takes another time."""
    turns = [TurnService(0, 0.0, rounds, 1.0, rounds) for rounds in (4, 2, 2)]
    assert simulate_pass(turns, Slowdown(((1.0, 1.0), (2.0, 1.5)), 2), 2) == pytest.approx(4 * 1.5)
    assert simulate_pass(turns, Slowdown(), 1) == pytest.approx(8.0)
    prefilled = [TurnService(0, 0.5, 2, 1.0, 2)] * 2
    assert simulate_pass(prefilled, Slowdown(((1.0, 1.0), (2.0, 2.0)), 2), 2) == pytest.approx(1.0 + 2 * 2.0)


def test_a_seed_repeats_and_methods_see_the_same_sessions() -> None:
    """Fails if a plan changes from call to call, or one method is asked more than the other."""
    slow, fast = (simulate(serving(s), 5, 20.0, turns=200, seed=4) for s in (1.0, 0.5))
    again = simulate(serving(1.0), 5, 20.0, turns=200, seed=4)
    other = simulate(serving(1.0), 5, 20.0, turns=200, seed=5)
    assert [r.asked_s for r in slow.requests] == [r.asked_s for r in again.requests]
    assert [r.asked_s for r in slow.requests] != [r.asked_s for r in other.requests]
    assert fast.asked_gap_s == pytest.approx(slow.asked_gap_s, rel=0.1)


# how many GPUs


def test_the_number_of_gpus_is_the_load_where_nothing_else_matters() -> None:
    """200 sessions x 1 s every 20 s are 10 GPUs of work. Fails far from it: below it they could not be served."""
    (need,) = needs({"none": serving(1.0)}, Asked(200, 20.0))
    assert need.gpus is not None and 10 <= need.gpus <= 14 and need.bound_by == "time"
    assert need.turns_per_s == pytest.approx(10.0, rel=0.1) and need.tokens_per_s == pytest.approx(100.0, rel=0.1)


def test_a_method_twice_as_fast_needs_half_of_them_and_saves_half() -> None:
    """Fails if savings are not paired, or a faster method does not let a GPU take more sessions."""
    plain, fast = needs({"none": serving(1.0), "ngram": serving(0.5, method="ngram")}, Asked(400, 20.0, gpu_hour=2.0))
    assert plain.gpus is not None and fast.gpus is not None
    assert fast.gpus == pytest.approx(plain.gpus / 2, rel=0.2) and fast.saves == pytest.approx(0.5)
    assert plain.saves is None and fast.cost_per_hour == 2.0 * fast.gpus
    assert fast.saves_low == pytest.approx(0.5) and fast.saves_high == pytest.approx(0.5)


def test_a_limit_on_the_first_token_needs_more_gpus() -> None:
    """Fails if a limit is accepted and not obeyed."""
    service = serving(1.0)
    free, _ = most_sessions(service, Asked(100, 20.0))
    tight, bound_by = most_sessions(service, Asked(100, 20.0, first_token_s=0.5))
    assert 1 <= tight < free and bound_by == "time"
    prefilled = Service("none", ((TurnService(0, 2.0, 1, 1.0, 5),),))
    assert most_sessions(prefilled, Asked(10, 100.0, first_token_s=1.0)) == (0, "time")


def test_memory_bounds_the_sessions_of_a_gpu() -> None:
    """Fails if sessions whose KV does not fit are put on one GPU, where every prefix would be thrown out."""
    service = Service("none", serving(0.001).rollouts, session_bytes=10e9)
    asked = Asked(100, 60.0, memory_bytes=80_000_000_000, weight_bytes=8_000_000_000)
    assert most_sessions(service, asked) == (6, "memory")
    (need,) = needs({"none": service}, asked)
    assert need.gpus == 17
    tiny = Asked(100, 60.0, memory_bytes=8_000_000_000, weight_bytes=8_000_000_000)
    assert most_sessions(service, tiny) == (0, "memory")


def test_intervals_are_carried_into_the_number_of_gpus() -> None:
    """Rollouts of unlike length leave the load open. Fails if a plan hides it, or the ends are not round the middle."""
    draw = random.Random(0)
    turns = [TurnService(0, 0.0, 1, draw.lognormvariate(0, 0.6), 5) for _ in range(8)]
    (need,) = needs({"none": Service("none", tuple((turn,) for turn in turns))}, Asked(300, 30.0))
    assert need.gpus_low is not None and need.gpus is not None and need.gpus_high is not None
    assert need.gpus_low < need.gpus < need.gpus_high


# from rows


def test_a_service_is_what_the_rows_took() -> None:
    """Fails if prefill, ingest or rounds are lost, or turns that one method lacks are in another's mean."""
    rows = two_rollouts()
    services = services_of(rows[:-1])
    assert list(services) == ["none", "ngram"] and sum(map(len, services["none"].rollouts)) == 3
    turn = services["ngram"].rollouts[0][0]
    assert turn.prefill_s == pytest.approx(0.06) and turn.rounds == 2 and turn.step_s == pytest.approx(0.012)
    assert turn.alone_s == pytest.approx(0.06 + 2 * 0.012)
    with pytest.raises(ConfigError, match="plain decoding"):
        services_of([row for row in rows if row.drafter != "none"])


def growing(contexts: int = 4) -> list[TurnRow]:
    """One rollout whose turns double in context and in time."""
    rows = []
    for turn in range(contexts):
        for drafter, ms in (("none", 10.0), ("ngram", 5.0)):
            own = timed("r0", turn, drafter, [0] * 4, (0.0, ms * 2**turn, 0.0, 0.0, 0.0), k=3)
            own.context_tokens = 1500 * 2**turn
            rows.append(own)
    return rows


def test_seconds_are_told_by_context() -> None:
    """Fails if a short context's speed stands for a long one's."""
    found = by_context(services_of(growing()))
    assert [own["context"] for own in found] == ["1K-2K", "2K-4K", "4K-8K", "8K-16K"]
    assert [own["share"] for own in found] == [0.25] * 4
    assert found[3]["turn_s"]["none"] == pytest.approx(0.05 + 0.01 + 4 * 0.08)


def test_a_mix_weighs_contexts_as_asked() -> None:
    """Fails if a fleet of long contexts is planned with the short ones of the run."""
    services = services_of(growing())
    mixed = with_mix(services, {"1K-2K": 3.0, "8K-16K": 1.0})
    short, long = 0.06 + 4 * 0.01, 0.06 + 4 * 0.08
    assert mixed["none"].turn_s() == pytest.approx((3 * short + long) / 4)
    asked = [turn.context_tokens for _ in range(2000) for turn in mixed["none"].walk(random.Random(_))]
    assert sum(context == 1500 for context in asked) / len(asked) == pytest.approx(0.75, abs=0.05)
    with pytest.raises(ConfigError, match="--mix 64K-128K: the run has no turn"):
        with_mix(services, {"64K-128K": 1.0})


def passes(method: str = "none", points: tuple[tuple[int, float], ...] = ((1, 1.0), (4, 2.0))) -> list[ThroughputRow]:
    """Passes whose full steps take so many seconds at each concurrency."""
    return [
        ThroughputRow(
            target="toy", workload="w", drafter=method, k=3, thinking=None, concurrency=c, full_steps=10, full_s=10 * s
        )
        for c, s in points
    ]


def test_steps_between_measured_batches_lie_on_a_line() -> None:
    """Fails if a batch that was not measured is taken as free, or one is made larger than any that was."""
    slow = slowdowns(passes())["none"]
    assert slow.most == 4 and [slow.at(rows) for rows in (1, 2, 4)] == pytest.approx([1.0, 4 / 3, 2.0])
    assert slowdowns(passes(points=((2, 1.0), (4, 2.0)))) == {}
    three = passes(points=((1, 1.0), (2, 5.0), (4, 2.0)))
    assert slowdowns(three, 2)["none"].at(2) == pytest.approx(4 / 3), "the point that is foretold tells itself"


def recorded() -> Path:
    """The run of the recorded table 4: seven methods at concurrency 1 and 4."""
    (rows,) = (RESULTS / "paper" / "runs").glob("*/throughput.jsonl")
    return rows.parent


def test_the_recorded_points_of_table4_are_simulated_within_their_intervals() -> None:
    """Fails if the simulation does not serve a batch as the engine does."""
    checked = check_passes(read_rows(recorded()))
    assert len(checked) >= 7 and len({own.method for own in checked}) == 7
    assert all(own.inside for own in checked), [own for own in checked if not own.inside]
    assert all(own.simulated == pytest.approx(own.measured, rel=0.06) for own in checked)


def test_a_point_between_two_others_is_foretold_from_them() -> None:
    """Fails if a point tells itself, or one that others do not surround is drawn on from them."""
    rows = passes(points=((1, 1.0), (2, 1.5), (4, 2.0)))
    for row in rows:
        steps = 32 // row.concurrency  # eight turns of four rounds each
        row.steps, row.decode_s, row.emitted = steps, steps * (row.full_s or 0.0) / 10, 32
        row.rollouts = {str(turn): (4, 4, 4) for turn in range(8)}
    middle, last = check_passes(rows)
    assert middle.simulated == pytest.approx(middle.measured) and last.simulated == pytest.approx(last.measured)
    assert middle.foretold == pytest.approx(32 / (16 * 4 / 3)) and last.foretold is None


def test_a_simulation_that_is_off_is_found() -> None:
    """The control: turns of twice as many rounds as were measured lie outside every interval."""
    rows = read_rows(recorded())
    for row in rows:
        row.rollouts = {name: (tokens, raw, 2 * rounds) for name, (tokens, raw, rounds) in row.rollouts.items()}
    assert not any(own.inside for own in check_passes(rows) if own.method in ("none", "eagle3", "dflash", "dspark"))


# the command


def test_the_command_plans_from_a_recorded_run() -> None:
    """Fails if a recorded run cannot be planned from, or a method that is faster turn by turn saves nothing."""
    run = RESULTS / "recorded" / "bfcl-v3-smollm2-135m"
    done = call("plan-fleet", run, "--sessions", 200, "--turn-rate", 0.5, "--gpu-hour", 2)
    assert done.code == 0, done.err
    found = {own["method"]: own for own in done.last["needs"]}
    drafters = {row.drafter for row in read_run(run)[1]}
    assert set(found) == drafters and found["none"]["saves"] is None
    assert found["ngram"]["saves"] > 0 and found["ngram"]["gpus"] <= found["none"]["gpus"]
    assert all(own["gpus_low"] <= own["gpus"] <= own["gpus_high"] for own in found.values())
    assert "an estimate" in done.err and "one turn at a time" in done.err


def test_measured_points_stand_beside_their_simulation() -> None:
    """Fails if a reader is told that points were checked and not what was measured and what came out."""
    run = RESULTS / "recorded" / "bfcl-v3-smollm2-135m"
    done = call("plan-fleet", run, "--sessions", 4, "--turn-rate", 0.2, "--batches", recorded())
    assert done.code == 0, done.err
    checked = {own["method"]: own for own in done.last["checked"]}
    assert f"{checked['ngram']['measured']:.1f} [" in done.err and f"{checked['ngram']['simulated']:.1f}" in done.err
    assert "7 of 7 measured points" in done.err and "none is foretold" in done.err


def test_python_plans_what_the_command_does() -> None:
    """Fails if the two differ in a number, or Python takes what the command refuses."""
    run = RESULTS / "recorded" / "bfcl-v3-smollm2-135m"
    done = call("plan-fleet", run, "--sessions", 4, "--turn-rate", 0.2, "--mix", "2K-4K=1")
    found = ab.plan_fleet(ab.load(run), sessions=4, turn_rate=0.2, mix={"2K-4K": 1.0})
    assert json.loads(json.dumps(found.as_dict())) == {name: done.last[name] for name in found.as_dict()}
    for mistake in ({"turn_rate": 0.0}, {"sessions": 0}, {"mix": {"2K-4K": -1.0}}, {"gpu_hour": math.inf}):
        with pytest.raises(ConfigError, match="expected"):
            ab.plan_fleet(run, **({"sessions": 4, "turn_rate": 0.2} | mistake))


def test_batches_of_another_target_are_refused(tmp_path: Path) -> None:
    """Fails if a model's turns are batched as another model's were."""
    run = write_run(tmp_path / "run", two_rollouts())
    done = call("plan-fleet", run, "--sessions", 2, "--turn-rate", 1, "--batches", recorded())
    assert done.code == 2 and "measured with smollm2-135m, and the run with toy" in done.error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--turn-rate", 0), "--turn-rate 0"),
        (("--turn-rate", 1, "--gpu-hour", -1), "--gpu-hour -1"),
        (("--turn-rate", 1, "--mix", "4K"), "--mix '4K'"),
        (("--turn-rate", 1, "--mix", "under 1K=0"), "all shares are 0"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: tuple[object, ...], says: str) -> None:
    """Fails if a plan is made for nothing at all."""
    run = write_run(tmp_path / "run", two_rollouts())
    done = call("plan-fleet", run, "--sessions", 2, *arguments)
    assert done.code == 2 and says in done.error
