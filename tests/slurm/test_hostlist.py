"""Host lists: every form that Slurm writes, in its order, and the ones that it does not."""

from __future__ import annotations

import pytest

from launcher.slurm.hostlist import LIMIT, expand, fold
from tests.cluster.slurm.handle import SlurmCluster

FORMS = {
    "c1": "c1",
    "n": "n",
    "a,b,c": "a b c",
    "b,a": "b a",
    "a,a": "a a",
    "1,2": "1 2",
    "[1-2]": "1 2",
    "node[01-03,07]": "node01 node02 node03 node07",
    "n[3,1]": "n3 n1",
    "n[5-6,3],m1": "n5 n6 n3 m1",
    "n[09-11]": "n09 n10 n11",
    "n[8-10]": "n8 n9 n10",
    "n[98-101]": "n98 n99 n100 n101",
    "n[098-101]": "n098 n099 n100 n101",
    "n[08-9]": "n08 n09",
    "n[8-010]": "n8 n9 n10",
    "n[1-2,01-02]": "n1 n2 n01 n02",
    "nodeA,nodeB[001,003],nodeC": "nodeA nodeB001 nodeB003 nodeC",
    "foo003,foo0[10-12],foo[103-104],foo-m11-16": "foo003 foo010 foo011 foo012 foo103 foo104 foo-m11-16",
    "c427-032,c429-002": "c427-032 c429-002",
    "a-b.example.org": "a-b.example.org",
    "rack[1-2]n[01-02]": "rack1n01 rack1n02 rack2n01 rack2n02",
    "rack[1-2,5]n[3,1]": "rack1n3 rack1n1 rack2n3 rack2n1 rack5n3 rack5n1",
    "r[1-2]n[1-2]c[1-2]": "r1n1c1 r1n1c2 r2n1c1 r2n1c2 r1n2c1 r1n2c2 r2n2c1 r2n2c2",
    "r[1-2]n[1-2]c[1-2]d[1-2]": "r1n1c1d1 r1n1c1d2 r2n1c1d1 r2n1c1d2 r1n2c1d1 r1n2c1d2 r2n2c1d1 r2n2c1d2 "
    "r1n1c2d1 r1n1c2d2 r2n1c2d1 r2n1c2d2 r1n2c2d1 r1n2c2d2 r2n2c2d1 r2n2c2d2",
}
"""what `scontrol show hostnames` of 22.05 prints"""


@pytest.mark.parametrize("text", FORMS)
def test_a_list_is_unfolded_in_its_own_order(text: str) -> None:
    """Padding and duplicates stay as they are; the last bracket turns fastest, then the first, as in Slurm."""
    assert expand(text) == FORMS[text].split()


def test_a_range_that_outgrows_its_padding_goes_on() -> None:
    """Slurm writes n[01-100] for n01 to n100."""
    assert expand("n[01-100]") == [f"n{number:02}" for number in range(1, 101)]


def test_a_suffix_after_a_bracket_is_read_though_slurm_would_not() -> None:
    """Other tools write such lists, and there is one thing they can mean."""
    assert expand("n[1-2]-ib,rack[1-2][3-4]x") == ["n1-ib", "n2-ib", "rack13x", "rack14x", "rack23x", "rack24x"]


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "a,,b", "n[1-2", "n1-2]", "n[]", "n[a-b]", "n[2-1]", "n[1,,2]", "n[1-2-3]", "a b", "@group", "a!b", "é1"],
)
def test_what_is_no_list_is_an_error_and_not_a_guess(text: str) -> None:
    """Half a list would be a job on half of the nodes."""
    with pytest.raises(ValueError, match="host list"):
        expand(text)


@pytest.mark.parametrize("text", [f"n[0-{LIMIT}]", "n[1-300]m[1-300]", "n[1-99999999999]"])
def test_a_list_of_too_many_names_is_none(text: str) -> None:
    """It is refused before it takes the memory."""
    with pytest.raises(ValueError, match=str(LIMIT)):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("n1 n2 n3", "n[1-3]"),
        ("n3 n1 n3", "n[1,3]"),
        ("n09 n10 m", "m,n[09-10]"),
        ("rack1n1 rack1n2 rack2n1", "rack1n[1-2],rack2n1"),
        ("n1-ib n2-ib", "n1-ib,n2-ib"),
        ("", ""),
    ],
)
def test_names_are_folded_as_slurm_reads_them(names: str, text: str) -> None:
    """Only the last number of a name is folded: Slurm takes no bracket before a suffix."""
    assert fold(names.split()) == text


@pytest.mark.parametrize("text", FORMS)
def test_folding_and_unfolding_again_loses_no_name(text: str) -> None:
    """The order is lost, and said to be."""
    names = expand(text)
    assert set(expand(fold(names))) == set(names)


def test_scontrol_says_the_same(slurm: SlurmCluster) -> None:
    """The table above, and each list that we fold, put to a real `scontrol show hostnames`."""
    texts = [*FORMS, "n[01-100]"]
    script = 'while read -r text; do scontrol show hostnames "$text" | tr "\\n" " "; echo; done'
    asked = slurm.run(slurm.login, script, stdin="".join(f"{text}\n" for text in texts)).stdout.splitlines()
    assert {text: names.split() for text, names in zip(texts, asked, strict=True)} == {text: expand(text) for text in texts}
    folded = [fold(expand(text)) for text in texts]
    again = slurm.run(slurm.login, script, stdin="".join(f"{text}\n" for text in folded)).stdout.splitlines()
    assert [sorted(set(names.split())) for names in again] == [sorted(set(expand(text))) for text in texts]
