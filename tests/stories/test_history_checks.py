"""The judgement on a history finds each broken promise, and no allowed event."""

from __future__ import annotations

from tests.stories.history import Confirm, Delivery, History, Message, violations


def message(number: int) -> Message:
    return Message("p#1", number)


def history(*deliveries: Delivery, confirmed: int = 0, lost: str = "") -> History:
    confirms = [Confirm(message(number), 0.0, 0.1) for number in range(1, confirmed + 1)]
    return History(confirms, list(deliveries), {lost})


def first(number: int, consumer: str = "c#1") -> Delivery:
    return Delivery("q", consumer, message(number), redelivered=False)


def again(number: int, consumer: str = "c#1") -> Delivery:
    return Delivery("q", consumer, message(number), redelivered=True)


def found(judged: History, *, ordered: bool = False) -> list[str]:
    return violations(judged, ["q"], ["q"] if ordered else [])


def test_a_message_that_was_confirmed_and_not_delivered_is_lost() -> None:
    [finding] = found(history(first(1), confirmed=2))
    assert "number=2) was confirmed and never came out of q" in finding
    assert found(history(first(1), first(2), confirmed=2)) == []


def test_delivery_without_a_confirm_is_allowed() -> None:
    assert found(history(first(1))) == []


def test_redelivery_must_be_marked_and_its_holder_dead() -> None:
    assert found(history(first(1, "a"), again(1, "b"), lost="a")) == []
    [unmarked] = found(history(first(1, "a"), first(1, "b"), lost="a"))
    assert "is not marked" in unmarked
    [stolen] = found(history(first(1, "a"), again(1, "b")))
    assert "which lives" in stolen


def test_first_deliveries_must_be_in_order() -> None:
    swapped = history(first(2, "a"), first(1, "b"))
    assert found(swapped) == []
    assert len(found(swapped, ordered=True)) == 1
    assert len(found(history(first(2), first(1)))) == 1
    assert found(history(first(2), again(1)), ordered=True) == []


def test_a_second_confirm_and_every_incident_are_found() -> None:
    judged = history(first(1), confirmed=1)
    judged.confirms *= 2
    judged.incidents.append("a nack")
    assert found(judged) == ["a nack", f"{message(1)} was confirmed 2 times"]
