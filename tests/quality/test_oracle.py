"""The shell scanner beside a real grammar, on every distinct command that recorded agents ran."""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
from collections import Counter
from pathlib import Path

from otel_toolguard.core.classify import classify
from otel_toolguard.core.commands import command_text
from otel_toolguard.core.shell import CAP, programs

SHARED = Path(os.environ.get("SHARED", "../shared"))
HERE = runpy.run_path(str(Path(__file__).parents[1] / "core" / "test_shell_oracle.py"))
oracle = HERE["oracle"]
AGREEMENT = 0.95
NOTEBOOK = re.compile(r"(?m)^([ \t]*)(?:!|%%?)(?=[A-Za-z/.])")  # !git and %cd are no shell, but run one
FEATURES = {
    "heredoc": "heredoc_redirect", "substitution": "command_substitution", "loop": "do_group", "if": "if_statement",
    "case": "case_statement", "test": "test_command", "function": "function_definition", "pipe": "pipeline",
}  # fmt: skip


def commands():
    """Each distinct shell command, with how often it was asked for."""
    found = Counter()
    for path in sorted((SHARED / "trajectories").glob("calls-*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                arguments = row["arguments"]
                # Where the class does not depend on the text, the tool is no shell.
                if isinstance(arguments, dict) and (text := command_text(arguments)) and is_shell(row["tool"]):
                    found[text] += 1
    return found


def is_shell(tool):
    return bool(classify(tool, {"command": "an-unlisted-program"}).programs)


def class_of(found):
    """The class of the whole from that of each simple command by itself, which no grammar is needed for."""
    classes = {classify("bash", {"command": [words[0], *(w for w in words[1:] if w)]}).tool_class for words in found}
    return next((name for name in ("build", "network") if name in classes), "exec")


def kind_of(text, missing, extra):
    """What a disagreement is about: the constructs in the text, and which reading saw more."""
    tree = HERE["PARSER"].parse(text.encode("utf-8", "surrogatepass"))
    types, stack = set(), [tree.root_node]
    while stack:
        node = stack.pop()
        types.add(node.type)
        stack.extend(node.children)
    here = [name for name, kind in FEATURES.items() if kind in types]
    if "[[" in text and any(f"]]{mark}" in text for mark in (";", "&", "|", ")")):
        here.append("]] without a blank")
    who = " and ".join(["scanner misses"] * bool(missing) + ["scanner adds"] * bool(extra))
    return f"{who} in {' + '.join(here) or 'a plain command'}"


def test_the_scanner_agrees_with_a_grammar_on_recorded_commands():
    """On the distinct commands that the grammar accepts 95 % have the same programs and 95 % the same class."""
    counts, kinds, examples = Counter(), Counter(), {}
    for text in commands():
        if len(text) > CAP:
            counts["too long"] += 1
            continue
        plain = NOTEBOOK.sub(r"\1", text)
        counts["with escapes of notebooks"] += plain != text
        found, accepted = oracle(plain)
        if not accepted:
            counts["not accepted by the grammar"] += 1
        judged = "judged" if accepted else "judged, not accepted"
        counts[judged] += 1
        seen, grammar = set(programs(text).programs), {words[0] for words in found}
        counts[f"{judged}: programs"] += seen == grammar
        counts[f"{judged}: class"] += classify("bash", {"command": text}).tool_class == class_of(found)
        if accepted and seen != grammar:
            kind = kind_of(text, grammar - seen, seen - grammar)
            kinds[kind] += 1
            examples.setdefault(kind, (text, sorted(grammar - seen), sorted(seen - grammar)))
    report(counts, kinds, examples)
    assert counts["judged"] > 1000
    assert counts["judged: programs"] >= AGREEMENT * counts["judged"]
    assert counts["judged: class"] >= AGREEMENT * counts["judged"]


def report(counts, kinds, examples):
    lines = [f"{name}: {number}" for name, number in sorted(counts.items())]
    agreed = {what: counts[f"judged: {what}"] / counts["judged"] for what in ("programs", "class")}
    lines += [f"agreement of the {what}: {share:.2%}" for what, share in agreed.items()]
    for kind, number in kinds.most_common(10):
        text, missing, extra = examples[kind]
        lines.append(f"{number:5}  {kind}; e.g. misses {missing}, adds {extra} in {text[:160]!r}")
    print("\n" + "\n".join(lines))
