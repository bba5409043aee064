"""Results are made once for equal functions, and properties once for an object."""

import threading
import time
from collections.abc import Callable
from typing import Any

from popgibbs._reuse import computed_once, reused


def scaled(by: Any) -> Callable[[Any], Any]:
    return lambda value: by * value


def test_results_are_made_once_per_content() -> None:
    made: list[Any] = []

    def make(function: Any) -> int:
        made.append(function)
        return len(made)

    assert [reused(make, scaled(2.0)), reused(make, scaled(3.0)), reused(make, scaled(2.0))] == [1, 2, 1]


class Slow:
    """Its property waits for an event, as a property that runs a NumPyro program may wait for another thread."""

    def __init__(self, event: threading.Event):
        self.event = event
        self.num_computed = 0

    @computed_once
    def value(self) -> int:
        self.num_computed += 1
        assert self.event.wait(timeout=60)
        return 3


def test_a_property_is_computed_once_and_holds_up_no_other_object() -> None:
    """The property of one object can wait for something that a thread does after it used that of another object."""
    slow, quick = Slow(threading.Event()), Slow(threading.Event())
    quick.event.set()
    waiting = threading.Thread(target=lambda: slow.value)
    waiting.start()
    while not slow.num_computed:
        time.sleep(0.001)
    other = threading.Thread(target=lambda: quick.value, daemon=True)
    other.start()
    other.join(timeout=10)
    assert not other.is_alive()
    slow.event.set()
    waiting.join()
    assert (slow.value, quick.value) == (3, 3)
    assert (slow.num_computed, quick.num_computed) == (1, 1)
