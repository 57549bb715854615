"""Figures have the right values."""

import numpy as np
import pytest
from load_records import answered, missed, span

from firstlight.infra.bench.load.figures import Sla, figures, spread
from firstlight.infra.bench.load.records import Reason, Record

NONE = Sla()


def test_percentiles_are_numpys() -> None:
    values = [float(n) for n in range(1, 102)]
    found = spread(values)
    assert found is not None
    assert (found.count, found.mean, found.p50, found.max) == (101, 51.0, 51.0, 101.0)
    assert [found.p90, found.p95, found.p99] == np.percentile(values, (90, 95, 99)).tolist()
    assert spread([None]) is None


def test_one_answer_has_its_times() -> None:
    one = answered(planned_s=5.0, slip_s=0.004, first_s=0.1, gap_s=0.02, tokens=5)
    found = figures([one], span(2.0), NONE)
    assert found.ttft_ms is not None
    assert found.ttft_ms.p50 == pytest.approx(100.0)
    assert found.tpot_ms is not None
    assert found.tpot_ms.p50 == pytest.approx(20.0)
    assert found.itl_ms is not None
    assert (found.itl_ms.count, found.itl_ms.p99) == (4, pytest.approx(20.0))
    assert found.e2e_ms is not None
    assert found.e2e_ms.p50 == pytest.approx(190.0)
    assert found.client.slip_ms is not None
    assert found.client.slip_ms.max == pytest.approx(4.0)
    assert (found.requests_per_s, found.tokens_in_per_s, found.tokens_out_per_s) == (0.5, 50, 2.5)


def test_cold_and_warm_first_texts_are_apart_and_cold_ones_hold_the_connecting() -> None:
    records = [answered(first_s=0.1), answered(first_s=0.3, connect_s=0.15)]
    found = figures(records, span(), NONE)
    assert found.ttft_warm_ms is not None
    assert found.ttft_cold_ms is not None
    assert found.connect_ms is not None
    assert (found.ttft_warm_ms.count, found.ttft_warm_ms.p50) == (1, pytest.approx(100.0))
    assert (found.ttft_cold_ms.count, found.ttft_cold_ms.p50) == (1, pytest.approx(300.0))
    assert (found.connect_ms.count, found.connect_ms.p50) == (1, pytest.approx(150.0))


def test_refused_failed_and_unsent_requests_miss_the_sla() -> None:
    unsent = Record(9, 0.0, 100, cold=False)
    unsent.missed(Reason.NOT_SENT, "3 were out already", 0.0)
    records = [
        answered(),
        answered(first_s=0.5),  # late
        answered(gap_s=0.2),  # slow
        answered(tokens=1),  # has no time per token to miss
        missed(Reason.QUOTA),
        missed(Reason.QUOTA),
        missed(Reason.CUT),
        unsent,
    ]
    found = figures(records, span(4.0), Sla(200.0, 50.0))
    assert found.misses == {"refused_429": 2, "cut": 1, "not_sent": 1}
    assert (found.goodput.met, found.goodput.share, found.goodput.per_s) == (2, 0.25, 0.5)
    counts = found.counts
    assert (counts.due, counts.sent, counts.answered, counts.missed) == (8, 7, 4, 4)
    assert found.ttft_ms is not None
    assert found.ttft_ms.count == 4


def test_what_was_still_out_is_neither_answered_nor_missed() -> None:
    out = Record(1, 0.0, 100, cold=False)
    out.sent_s = 0.0
    found = figures([answered(), out], span(planned=5), NONE)
    counts = found.counts
    assert (counts.planned, counts.due, counts.answered, counts.unfinished) == (5, 2, 1, 1)
    assert found.goodput.share == 1.0


def test_a_run_slipped_when_its_worst_hundredth_was_more_than_10_ms_late() -> None:
    punctual = [answered(n, slip_s=0.009) for n in range(100)]
    late = [*punctual[:97], *(answered(n, slip_s=0.05) for n in range(3))]
    assert not figures(punctual, span(), NONE).client.slipped
    assert figures(late, span(), NONE).client.slipped


def test_a_client_is_busy_that_computed_most_of_any_second() -> None:
    calm = figures([answered()], span(10.0, cpu_s=2.0, cpu_share_max=0.5), NONE).client
    busy = figures([answered()], span(10.0, cpu_s=2.0, cpu_share_max=0.9), NONE).client
    assert (calm.cpu_share, calm.busy, busy.busy) == (0.2, False, True)


def test_prompts_that_the_server_counts_otherwise_are_told_and_its_count_is_taken() -> None:
    fits, differs = answered(), answered()
    fits.tokens_in_told, differs.tokens_in_told, differs.tokens_cached = 100, 120, 64
    found = figures([fits, differs, answered()], span(), NONE)
    assert (found.prompts_miscounted, found.tokens_in, found.tokens_cached) == (1, 320, 64)


def test_more_cached_tokens_than_the_run_itself_could_leave_were_known_before() -> None:
    one = answered()
    one.tokens_cached = 96
    assert figures([one], span(), NONE).known_before
    assert not figures([one], span(shareable_tokens=32), NONE).known_before


def test_a_run_without_answers_has_no_figures_but_counts() -> None:
    found = figures([missed(Reason.TIMEOUT)], span(0.0), NONE)
    assert (found.ttft_ms, found.itl_ms, found.requests_per_s) == (None, None, None)
    assert found.said == {"timeout": "why"}


def test_what_a_server_says_cannot_move_a_terminal_and_is_short() -> None:
    record = missed(Reason.ERROR, said="a\x1b[31m\nb " + "x" * 1000)
    assert record.said.startswith("a [31m b x")
    assert len(record.said) == 200
