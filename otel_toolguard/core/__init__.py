"""The decision, and nothing but the decision: pure functions over plain records."""
