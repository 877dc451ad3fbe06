import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_toolguard.core.shell import CAP, exit_one_is_an_answer, programs

PROGRAMS = [
    ("", []),
    ("   \n\t", []),
    ("ls -la", ["ls"]),
    ("cat a | sort | uniq -c", ["cat", "sort", "uniq"]),
    ("cc|ld", ["cc", "ld"]),
    ("a && b || c; d & e\nf", ["a", "b", "c", "d", "e", "f"]),
    ("make |& tee log", ["make", "tee"]),
    ("git commit -m 'x | make; curl'", ["git"]),
    ('git commit -m "a; make"', ["git"]),
    ("X=1 Y+=2 arr[0]=3 make", ["make"]),
    ("/usr/local/bin/make -C ./sub/", ["make"]),
    ("\\make", ["make"]),
    ("$PYTHON setup.py", ["$PYTHON"]),
    ('"$(which make)" all', ["which"]),
    ("echo a # make", ["echo"]),
    ("# only a comment", []),
    ("echo a#b && make", ["echo", "make"]),
    ("echo a \\\n b && \\\n make", ["echo", "make"]),
    ("ls\r\nmake\r\n", ["ls", "make"]),
    ("make>log 2>&1", ["make"]),
    ("2>/dev/null make", ["make"]),
    ("ls &>log; make &>>log", ["ls", "make"]),
    ("echo $(curl x)", ["echo", "curl"]),
    ('echo "a $(curl x) `wget y`"', ["echo", "curl", "wget"]),
    ("echo '$(curl x)'", ["echo"]),
    ("diff <(sort a) >(sort b)", ["diff", "sort", "sort"]),
    ("echo ${x:-$(curl y)} ${z:=`wget y`}", ["echo", "curl", "wget"]),
    ("echo $((1 + $(nproc)))", ["echo", "nproc"]),
    ("(( i++ )) && make", ["make"]),
    ("a=(1 2 $(curl x)); make", ["curl", "make"]),
    ("export A=(x y) && make", ["export", "make"]),
    ("cat <<'END'\nmake; $(curl x)\nEND\nls", ["cat", "ls"]),
    ("cat <<END\nmake $(curl x)\nEND\nls", ["cat", "curl", "ls"]),
    ("cat <<-END\n\tmake\n\tEND\nls", ["cat", "ls"]),
    ("cat <<A <<B\n$(one)\nA\n$(two)\nB\nls", ["cat", "one", "two", "ls"]),
    ("git commit -m \"$(cat <<'E'\nmake (it)\nE\n)\" && git push", ["git", "cat", "git"]),
    ('cat <<< "$(curl x)"', ["cat", "curl"]),
    ("sudo -u bob -E make", ["make"]),
    ("sudo -Eu bob make", ["make"]),
    ("sudo -v", ["sudo"]),
    ("env -i A=1 make", ["make"]),
    ("timeout -k 5 -s KILL 60s make", ["make"]),
    ("nohup nice -n 10 ionice -c2 stdbuf -oL setsid make &", ["make"]),
    ("exec make", ["make"]),
    ("exec 3>&1", ["exec"]),
    ("command -v make", ["command"]),
    ("chroot /mnt flock -w 5 /tmp/l strace -f -o out make", ["make"]),
    ("flock /tmp/l -c 'make x'", ["make"]),
    ("watch 'kubectl get pods | head'", ["kubectl", "head"]),
    ("find . -name x | xargs -n1 -P4 -I{} rm {}", ["find", "rm"]),
    ("time -p make", ["make"]),
    ("time { make; }", ["make"]),
    ("bash -lc 'cd a && make'", ["cd", "make"]),
    ("sh -x -c 'sh -c make'", ["make"]),
    ("bash -o pipefail -c 'make'", ["make"]),
    ("bash run.sh -c x", ["bash"]),
    ("python3.12 -u -m pytest -q", ["pytest"]),
    ("python -c 'import os'", ["python"]),
    ("find . -type f -exec sh -c 'wc $1' \\;", ["find", "wc"]),
    ("find . -execdir rm {} +", ["find", "rm"]),
    ("for f in *.c; do cc $f; done", ["cc"]),
    ("for ((i=0; i<3; i++)); do make; done", ["make"]),
    ("for x in a b\ndo\nmake\ndone", ["make"]),
    ("while ! curl -s x; do sleep 1; done", ["curl", "sleep"]),
    ("if [ -f x ]; then make; elif true; then ls; else id; fi", ["[", "make", "true", "ls", "id"]),
    ("case $x in a|b) make;; (c) curl x ;; *) ls;; esac; id", ["make", "curl", "ls", "id"]),
    ("[[ -n $x && $y > z ]] && make", ["[[", "make"]),
    ("f() { make; }; f", ["make", "f"]),
    ("function f { curl x; }; f", ["curl", "f"]),
    ("function g() { make; }", ["make"]),
    ("(cd x; make)", ["cd", "make"]),
    ("!git clone x", ["git"]),
    ("%cd x\n!make", ["cd", "make"]),
    ("ssh host 'make'; docker run i make", ["ssh", "docker"]),
]
OPEN_ENDS = ["$(", "`", "${", '"', "'", "((", "[[ a", "case x in", "<<E", "<(", "f(", "a=(", "\\", "sh -c", "for"]
HOSTILE = ["$(", '"${x:-', "$((", "a=(", "((", "`", "{ ", "case x in ", "<<a ", "sudo ", "find -exec ", "sh -c '", "a|"]


@pytest.mark.parametrize(("text", "expected"), PROGRAMS)
def test_programs_of_shell_text(text: str, expected: list[str]) -> None:
    """The scanner names the programs that a shell would run, in order, and nothing that is data."""
    assert list(programs(text).programs) == expected


@given(st.text(max_size=400))
def test_any_text_has_a_scan(text: str) -> None:
    """No text raises, lone surrogates and NULs included."""
    scan = programs(text)
    assert scan.programs == tuple(command.program for command in scan.commands)


@given(
    st.lists(
        st.sampled_from([*OPEN_ENDS, *HOSTILE, "make", " ", "\n", ")", "}", "|", ";", "\0", "\ud800"]), max_size=40
    )
)
def test_any_heap_of_shell_pieces_has_a_scan(pieces: list[str]) -> None:
    """Pieces of the grammar in any order do not raise either."""
    assert isinstance(programs("".join(pieces)).truncated, bool)


@pytest.mark.parametrize("piece", HOSTILE)
def test_deep_or_long_text_ends(piece: str) -> None:
    """Text made of one opening piece repeated far beyond the cap comes to an end and says that it was cut."""
    assert programs(piece * 20_000).truncated


def test_beyond_the_cap_the_head_is_kept() -> None:
    """Of a text over the cap the head is named whole, and a program behind the cap is not seen."""
    scan = programs("make; echo " + "x " * CAP + "; curl y")
    assert scan.programs == ("make", "echo")
    assert scan.truncated


def test_beyond_the_depth_the_outside_is_kept() -> None:
    """Substitutions nested deeper than the limit lose their inside only."""
    scan = programs("echo $(a $(b $(c $(d $(e $(f $(g)))))))")
    assert scan.programs[:3] == ("echo", "a", "b")
    assert scan.truncated


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bash", "-lc", "cd a && make"], ["cd", "make"]),
        (["git", "commit", "-m", "a; curl b"], ["git"]),
        (["ls -la", "make x"], ["ls", "make"]),
        (["", "x"], []),
        ([], []),
    ],
)
def test_argument_vectors(words: list[str], expected: list[str]) -> None:
    """A list of words is one command, unless its first word holds a blank."""
    assert list(programs(words).programs) == expected


@pytest.mark.parametrize(
    ("words", "truncated"), [(["ls", "a"], False), (["ls", "x" * CAP], True), (["x" * (CAP + 1)], True)]
)
def test_argument_vectors_have_the_same_cap(words: list[str], truncated: bool) -> None:
    """An argument vector over the cap is cut, keeps its head and says so."""
    scan = programs(words)
    assert scan.truncated is truncated
    assert len(scan.programs) == 1


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_argument_vector_has_a_scan(words: list[str]) -> None:
    """No list of words raises."""
    assert isinstance(programs(words).truncated, bool)


@pytest.mark.parametrize(
    ("text", "program", "reads_pipe"),
    [
        ("a; b", "b", False),
        ("a | b", "b", True),
        ("a | (b; c)", "c", True),
        ("a | while read x; do b; done; c", "c", False),
        ("tail -f $(ls | head -1)", "tail", False),
        ("find . -exec grep x {} +", "find", False),
        ("bash -c 'a | b'", "b", True),
    ],
)
def test_the_last_command(text: str, program: str, reads_pipe: bool) -> None:
    """The last command is that of the text itself, and knows whether a pipe feeds it."""
    last = programs(text).last
    assert last is not None
    assert (last.program, last.reads_pipe) == (program, reads_pipe)


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("echo a > f", True),
        ("echo a >> f", True),
        ("echo a &> f", True),
        ("echo a 2>&1", False),
        ("echo a >/dev/null", False),
    ],
)
def test_output_into_a_file_is_noted(text: str, writes: bool) -> None:
    """Only a redirection into a real file counts as writing."""
    assert programs(text).commands[0].writes is writes


def test_words_are_those_of_the_program() -> None:
    """A command's words begin with the program behind the wrapper, quotes removed, redirections left out."""
    assert programs("sudo git -C 'a b' push >log").commands[0].words == ("git", "-C", "a b", "push")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grep x f", True),
        ("cd a && rg x", True),
        ("ps | egrep x", True),
        ("timeout 5 diff a b", True),
        ("cmp a b", True),
        ("test -f x", True),
        ("[ -f x ]", True),
        ("bash -c 'fgrep x f'", True),
        ("grep x f | wc -l", False),
        ("grep x f || true", False),
        ("make", False),
        ("", False),
    ],
)
def test_exit_one_is_an_answer(text: str, expected: bool) -> None:
    """Exit code 1 is an answer only where the last command is one that answers with it."""
    assert exit_one_is_an_answer(text) is expected
