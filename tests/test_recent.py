"""What adapters remember between calls."""

import threading

from otel_toolguard.adapter import Recent


def test_what_was_not_asked_for_longest_is_forgotten():
    """A full mapping forgets the entry not asked for longest, and says which."""
    gone = []
    recent = Recent(2, lambda key, value: gone.append((key, value)))
    for key in ("a", "b", "a", "c"):
        recent.of(key, key.upper)
    assert (list(recent), gone, recent.get("b"), "a" in recent, len(recent)) == (
        ["a", "c"],
        [("b", "B")],
        None,
        True,
        2,
    )


def test_one_value_is_made_however_many_threads_ask():
    """Threads that ask for a key at once get the same value, made once."""
    recent, made, found = Recent(8), [], []
    ready = threading.Barrier(8)

    def ask():
        ready.wait()
        found.append(recent.of("key", lambda: made.append(1) or object()))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(set(map(id, found)))) == (1, 1)


def test_what_is_taken_out_is_made_anew():
    """A key that was taken out is unknown: nothing is told of it, and the next asker gets a new value."""
    gone = []
    recent = Recent(2, lambda key, value: gone.append(key))
    first = recent.of("a", object)
    assert recent.pop("a") is first
    assert recent.pop("a") is None
    assert (recent.of("a", object) is first, recent.values() == [recent.get("a")], gone) == (False, True, [])
