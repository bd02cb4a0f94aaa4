import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.recorded.nesting import nest


def by_stack(start, end, thread):
    """The definition, row by row: what was open on the thread when the call began."""
    order = sorted(range(len(start)), key=lambda i: (thread[i], start[i], -end[i], i))
    parent, depth = [-1] * len(start), [0] * len(start)
    open_calls, current = [], None
    for i in order:
        if thread[i] != current:
            open_calls, current = [], thread[i]
        while open_calls and end[open_calls[-1]] <= start[i]:
            open_calls.pop()
        if open_calls:
            parent[i] = open_calls[-1]
            depth[i] = depth[parent[i]] + 1
        open_calls.append(i)
    return parent, depth


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(0, 2)), max_size=40))
@settings(max_examples=200, deadline=None)
def test_nest_equals_a_stack(calls):
    start = np.array([c[0] for c in calls], np.int64)
    end = start + np.array([c[1] for c in calls], np.int64)
    thread = np.array([c[2] for c in calls], np.int64)
    parent, depth = nest(start, end, thread)
    expected_parent, expected_depth = by_stack(start.tolist(), end.tolist(), thread.tolist())
    assert parent.tolist() == expected_parent
    assert depth.tolist() == expected_depth


def test_many_siblings_in_one_call_are_all_its_children():
    n = 300_000
    start = np.r_[0, np.arange(n) * 2 + 1].astype(np.int64)
    end = np.r_[10 * n, np.arange(n) * 2 + 2].astype(np.int64)
    parent, depth = nest(start, end, np.zeros(n + 1, np.int64))
    assert (parent[1:] == 0).all() and parent[0] == -1
    assert (depth[1:] == 1).all()
