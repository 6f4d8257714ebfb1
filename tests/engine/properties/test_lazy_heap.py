"""`LazyHeap` against a sorted list of what is true."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardproc.engine.memory.lazy_heap import MIN_STALE, LazyHeap

STEPS = st.lists(
    st.tuples(st.sampled_from(["push", "push", "drop", "pop"]), st.integers(0, 50)), max_size=400
)


@given(STEPS, st.booleans())
def test_it_gives_what_is_true_in_order_and_keeps_little_else(
    steps: list[tuple[str, int]], reported: bool
) -> None:
    true: set[tuple[int, int, str]] = set()
    most = 0
    heap: LazyHeap[int, str] = LazyHeap(true.__contains__, reported=reported)
    for number, (step, value) in enumerate(steps):
        if step == "push":
            true.add((value, number, "item"))
            heap.push(value, number, "item")
        elif step == "drop" and true:
            true.remove(sorted(true)[value % len(true)])
            if reported:
                heap.forget()
        elif step == "pop":
            while (entry := heap.pop_due(value)) is not None and not heap.is_current(entry):
                pass
            due = min((each for each in true if each[0] <= value), default=None)
            assert entry == due
            true.discard(due or (0, 0, ""))
        most = max(most, len(true))
        assert len(heap) <= 2 * (len(true) if reported else most) + MIN_STALE + 1
        assert heap.first() == min(true, default=None)


def test_a_heap_with_reports_looks_at_nothing_while_it_grows() -> None:
    looks: list[object] = []

    def is_current(entry: object) -> bool:
        looks.append(entry)
        return True

    heap: LazyHeap[int, str] = LazyHeap(is_current, reported=True)
    for number in range(1000):
        heap.push(number, number, "item")
    assert not looks
