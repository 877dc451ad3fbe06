"""A guarded program in a process of its own, with the real SDK and its exporters: what a fault must not harm."""
