"""Rules of a third party: plain classes, found by entry point."""

from otel_toolguard.core.decision import Finding


class SameTool:
    """Stops a run after ``limit`` calls of one tool in a row, whatever they say."""

    name = "same_tool"
    advice = "You keep calling one tool: look whether another would help."

    def __init__(self, limit, *, spare=()):
        self.limit = limit
        self.spare = frozenset(spare)

    def start(self):
        return {"tool": None, "calls": 0}  # JSON values only: the state may be kept in a shared store

    def settle(self, mine, run, call, outcome):
        if call.tool in self.spare:
            return None
        mine["calls"] = mine["calls"] + 1 if call.tool == mine["tool"] else 1
        mine["tool"] = call.tool
        share = mine["calls"] / self.limit
        if share < 0.5:
            return None
        why = f"{call.tool} was called {mine['calls']} times in a row; same_tool limit = {mine['calls'] + 1} would do."
        return Finding(self.name, share, limit=self.limit, observed=mine["calls"], why=why)

    def report(self, states):
        return {"same_tool": max((mine["calls"] for mine in states), default=0)}


class FromTable:
    """A rule that reads its own table; it stops nothing."""

    name = "from_table"

    def __init__(self, table):
        self.table = table

    @classmethod
    def from_settings(cls, *, colour="blue", size):
        if size < 0:
            raise ValueError("size must not be negative")
        return cls({"colour": colour, "size": size})

    def report(self, states):
        return {"from_table": self.table}


class BrokenHooks:
    """Every hook of it fails, or answers nonsense."""

    name = "another name"

    def start(self):
        raise OSError("start")

    def admit(self, mine, run, call):
        raise RuntimeError("admit")

    def settle(self, mine, run, call, outcome):
        return "not a finding"

    def refused(self, mine, run, call, counted):
        return Finding("x", scope="planet", why="?")

    def on_retry(self, mine, kind, attempt):
        raise KeyError(kind)

    def on_cost(self, mine, run, amount):
        return Finding("x", float("nan"))

    def report(self, states):
        return 5
