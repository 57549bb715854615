"""What is said once, and again only after a while."""

from firstlight.shared.complaints import AGAIN_S, KEPT_MAX, Complaints


def test_a_complaint_is_made_once_and_again_after_a_minute() -> None:
    complaints = Complaints()
    said = [complaints.new("c1", "absurd", now) for now in (0.0, 0.25, AGAIN_S - 1, AGAIN_S)]
    assert said == [True, False, False, True]


def test_another_node_and_another_fault_are_other_complaints() -> None:
    complaints = Complaints()
    assert complaints.new("c1", "absurd", 0.0)
    assert complaints.new("c2", "absurd", 0.0)
    assert complaints.new("c1", "duplicate", 0.0)


def test_of_endlessly_many_liars_the_first_are_forgotten() -> None:
    complaints = Complaints()
    for number in range(KEPT_MAX + 1):
        assert complaints.new(f"c{number}", "absurd", 0.0)
    assert complaints.new("c0", "absurd", 1.0)
    assert not complaints.new(f"c{KEPT_MAX}", "absurd", 1.0)
