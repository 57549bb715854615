"""Which sources get rows: priors, averages, hysteresis, probes."""

from firstlight.shared.drafting.controller import PROBE_EVERY, Controller, pays, worth_drafting
from firstlight.shared.drafting.steptimes import StepTimes

FREE_ROWS = StepTimes(((1, 36.0), (8, 36.0)))
DEAR_ROWS = StepTimes(((1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0)))
CPU = StepTimes(((1, 36.0), (2, 36.0), (4, 47.0), (8, 77.0), (16, 116.0)))


def permits(controller: Controller, name: str, times: StepTimes) -> bool:
    return controller.permits(name, "s", times, rows=1, sequences=1, most=4)


def test_rows_that_cost_nothing_pay_at_any_acceptance():
    assert pays(0.01, FREE_ROWS, rows=1, sequences=1, most=4)


def test_rows_at_full_price_never_pay():
    assert not pays(0.99, DEAR_ROWS, rows=1, sequences=1, most=4)


def test_break_even_rises_as_the_batch_grows():
    assert pays(0.3, CPU, rows=1, sequences=1, most=4)
    assert not pays(0.3, CPU, rows=8, sequences=8, most=4)
    assert pays(0.9, CPU, rows=8, sequences=8, most=4)


def test_a_source_that_is_wrong_is_switched_off_for_the_request():
    controller, name = Controller(), "r"
    times = StepTimes(((1, 36.0), (2, 46.0), (4, 66.0)))
    assert permits(controller, name, times)
    for _ in range(20):
        controller.observe(name, "s", False)
    assert not permits(controller, name, times)


def test_between_the_two_thresholds_it_stays_as_it_was():
    times = StepTimes(((1, 30.0), (2, 45.0)))  # break-even 0.5 for one row
    controller = Controller({"s": 0.5})

    def permitted(name: str) -> bool:
        return controller.permits(name, "s", times, rows=1, sequences=1, most=1)

    assert permitted("r")
    for _ in range(10):
        controller.observe("r", "s", False)
    assert not permitted("r")
    while controller.acceptance("r", "s") < 0.5:
        controller.observe("r", "s", True)
    assert 0.5 < controller.acceptance("r", "s") < 0.5 / 0.9
    assert not permitted("r")
    for _ in range(10):
        controller.observe("r", "s", True)
    assert permitted("r")


def test_one_request_in_16_probes():
    controller = Controller()
    probing = sum(controller.probes(f"r{n}") for n in range(PROBE_EVERY * 5))
    assert probing == 5


def test_survival_is_the_product_along_the_run():
    controller = Controller({"a": 0.5, "b": 0.8})
    assert controller.survival("r", ("b", "b", "a")) == (0.8, 0.8 * 0.8, 0.8 * 0.8 * 0.5)


def test_all_requests_teach_the_prior_that_new_ones_start_from():
    controller = Controller()
    for n in range(40):
        for _ in range(10):
            controller.observe(f"r{n}", "s", True)
        controller.forget(f"r{n}")
    assert controller.acceptance("new", "s") > 0.9


def test_invented_source_names_do_not_grow_the_table():
    controller = Controller()
    for n in range(1000):
        controller.observe("r", f"s{n}", False)
    assert len({controller._name(f"s{n}") for n in range(1000)}) <= 33


def worth(acceptance, *odds, times=FREE_ROWS, token_ms=2.0, sequences=1, most=7):
    return worth_drafting(
        acceptance, times, sequences=sequences, odds=odds, token_ms=token_ms, most=most
    )


def test_a_better_drafter_drafts_more_and_a_slower_one_less():
    counts = [worth(acceptance)[1] for acceptance in (0.1, 0.5, 0.7, 0.9)]
    assert counts == sorted(counts)
    assert 0 < counts[1] < counts[3] == 7
    assert worth(0.7, token_ms=10.0)[1] < counts[2]
    assert worth(0.7, token_ms=40.0) == (0, 0)


def test_the_best_number_of_drafts_is_the_one_of_the_formula():
    def rate(k):
        return sum(0.7**place for place in range(k + 1)) / (36.0 + 3.0 * k)

    assert worth(0.7, token_ms=3.0) == (0, max(range(8), key=rate))


def test_a_batch_waits_for_the_drafts_of_all_and_so_drafts_less():
    times = StepTimes(((1, 36.0), (64, 36.0)))
    assert worth(0.8, times=times, sequences=8)[1] < worth(0.8, times=times)[1]


def test_what_others_foretold_well_is_drafted_behind_and_what_they_did_not_is_dropped():
    behind, count = worth(0.8, 0.95, 0.9)
    assert behind == 2
    assert count > 0
    behind, count = worth(0.8, 0.1, 0.01)
    assert behind == 0
    assert count > 2
