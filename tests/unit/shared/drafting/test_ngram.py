"""What followed the last time the text looked like this."""

from random import Random

from firstlight.shared.drafting.ngram import NgramDrafter


def test_it_continues_the_earlier_occurrence():
    assert NgramDrafter((1, 2, 3, 4, 5, 1, 2)).propose(3) == (3, 4, 5)


def test_it_proposes_nothing_for_a_text_that_never_repeats():
    assert NgramDrafter((1, 2, 3, 4)).propose(3) == ()
    assert NgramDrafter(()).propose(3) == ()
    assert NgramDrafter((1,)).propose(3) == ()


def test_the_longest_match_wins_over_a_later_shorter_one():
    ids = (9, 1, 2, 7, 7, 7, 5, 1, 2, 8, 9, 1, 2)
    assert NgramDrafter(ids).propose(1) == (7,)


def test_of_equal_matches_the_latest_wins():
    assert NgramDrafter((1, 2, 7, 1, 2, 8, 1, 2)).propose(1) == (8,)


def test_a_period_is_continued_beyond_the_end():
    assert NgramDrafter((1, 2, 3, 1, 2, 3)).propose(7) == (1, 2, 3, 1, 2, 3, 1)
    assert NgramDrafter((4, 4, 4)).propose(4) == (4, 4, 4, 4)


def test_a_hoped_for_tail_is_matched_as_if_it_were_there():
    drafter = NgramDrafter((1, 2, 3, 4, 5, 6))
    assert drafter.propose(2, tail=(2, 3)) == (4, 5)
    assert drafter.propose(2) == ()


def test_appending_is_the_same_as_beginning_with_it():
    random = Random(3)
    ids = [random.randrange(6) for _ in range(300)]
    grown = NgramDrafter(ids[:10])
    for token in ids[10:]:
        grown.append((token,))
    assert grown.propose(8) == NgramDrafter(ids).propose(8)


def test_a_proposal_for_zero_ids_is_empty():
    assert NgramDrafter((1, 2, 1, 2)).propose(0) == ()


def test_memory_is_bounded_and_the_latest_ids_still_match():
    drafter = NgramDrafter(ids_max=64)
    random = Random(1)
    drafter.append([random.randrange(1000) for _ in range(10_000)])
    assert len(drafter) <= 64
    drafter.append((5, 6, 7, 8, 5, 6))
    assert drafter.propose(2) == (7, 8)
