"""How old messages are, by notes of how far the log was."""

from __future__ import annotations

from qq.management.statistics.entry_times import LEVEL_RECORDS, EntryTimes


def test_entry_is_as_old_as_the_first_record_that_has_it() -> None:
    times = EntryTimes()
    assert times.age_ms(7, 1000) == 0  # no record yet
    times.record(10, 1000)
    times.record(20, 6000)
    times.record(20, 11_000)  # no new entry since
    times.record(30, 16_000)
    ages = {index: times.age_ms(index, 20_000) for index in (1, 10, 11, 20, 21, 30, 31)}
    assert ages == {1: 19_000, 10: 19_000, 11: 14_000, 20: 14_000, 21: 4000, 30: 4000, 31: 0}
    assert times.age_ms(10, 0) == 0  # a time that is behind that of the note


def test_records_are_bounded_and_ages_exact_to_a_hundredth() -> None:
    times, count = EntryTimes(), 200_000  # eleven days
    for number in range(count):
        times.record(number, 5000 * number)
    kept = sum(map(len, times._levels))
    assert kept < 12 * LEVEL_RECORDS
    now_ms = 5000 * count
    recent = [times.age_ms(index, now_ms) for index in range(count - LEVEL_RECORDS, count)]
    assert recent == [5000 * (LEVEL_RECORDS - place) for place in range(LEVEL_RECORDS)]
    for index in range(0, count, 97):
        age_ms = now_ms - 5000 * index
        assert 0.98 * age_ms <= times.age_ms(index, now_ms) <= age_ms
