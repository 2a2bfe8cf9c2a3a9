"""Settings that somebody states reach what they are for, through all calls in between.

A function that has `significance` or `delta` and calls another one without it gives a bound at the
default, which nobody asked for and which looks the same. Whoever reads a call cannot see it.
"""

import ast
from collections import Counter
from functools import cache
from math import sqrt
from typing import NamedTuple, TypeVar

import pytest
from running import ROOT

from dpcanary.accounting.accounted_overview import upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon

Node = TypeVar("Node", bound=ast.AST)
STATED = {"significance", "delta", "adjacency"}
# Calls that leave a setting at its default, and why that is right.
LEFT_OUT = {
    # They only order accountants at sample rate 1 by delta.
    ("accounting/accounted_overview.py", "all_methods", "delta"),
    ("accounting/comparison.py", "exact_methods", "delta"),
    ("accounting/shuffled_epsilons.py", "exact_methods", "delta"),
    # A claim is a whole mechanism, and has no delta.
    ("watching/watched_training.py", "assess_claim", "delta"),
    # The report of a watched training has no option for it.
    ("commands/results.py", "read_watched", "significance"),
    # The command's options have the mechanism under each adjacency.
    ("commands/account.py", "shuffled_mechanism_of", "adjacency"),
}

# A method of an abstract curve, whose classes have the body.
IGNORED = {("accounting/curve.py", "epsilon")}


class Function(NamedTuple):
    """A function: its positional arguments, those with defaults, and those that it never reads."""

    file: str
    name: str
    positional: list[str]
    optional: set[str]
    unread: set[str]


def function_of(file: str, node: ast.FunctionDef) -> Function:
    arguments = node.args
    positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    optional = {argument.arg for argument, default in keywords if default is not None}
    optional |= {*positional[len(positional) - len(arguments.defaults) :]}
    read = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    every = {*positional, *(argument.arg for argument in arguments.kwonlyargs)}
    return Function(file, node.name, positional, optional, every - read)


def nodes_in(trees: dict[str, ast.Module], kind: type[Node]) -> list[tuple[str, Node]]:
    """All nodes of a kind, each after its file."""
    walked = ((file, node) for file, tree in trees.items() for node in ast.walk(tree))
    return [(file, node) for file, node in walked if isinstance(node, kind)]


def functions_in(trees: dict[str, ast.Module]) -> list[Function]:
    return [function_of(file, node) for file, node in nodes_in(trees, ast.FunctionDef)]


def left_out(trees: dict[str, ast.Module]) -> set[tuple[str, str, str]]:
    """File, function and setting of each call that leaves an optional setting out."""
    functions, calls = functions_in(trees), set()
    counts = Counter(function.name for function in functions)
    by_name = {function.name: function for function in functions if counts[function.name] == 1}
    for file, call in nodes_in(trees, ast.Call):
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if name not in by_name or any(keyword.arg is None for keyword in call.keywords):
            continue  # `**options` may hold any
        function = by_name[name]
        is_method = function.positional[:1] == ["self"]
        stated = {keyword.arg for keyword in call.keywords}
        stated |= {*function.positional[: len(call.args) + is_method]}
        calls |= {(file, name, key) for key in (function.optional & STATED) - stated}
    return calls


@cache
def package() -> dict[str, ast.Module]:
    root = ROOT / "dpcanary"
    return {
        str(path.relative_to(root)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
    }


@pytest.mark.long
def test_no_call_leaves_a_stated_setting_at_its_default():
    assert left_out(package()) == LEFT_OUT


def test_no_function_ignores_a_stated_setting():
    functions = functions_in(package())
    assert {(each.file, each.name) for each in functions if each.unread & STATED} == IGNORED


def test_what_is_left_out_or_ignored_is_seen():
    source = """
def bound(scores, *, delta, significance=0.05): return delta * significance
def audit(scores, delta, significance=0.05): return bound(scores, delta=delta)
def plan(scores, delta=1e-5): return audit(scores, 1e-5, 0.1), bound(scores, **options)
"""
    trees = {"f.py": ast.parse(source)}
    assert left_out(trees) == {("f.py", "bound", "significance")}
    unread = {function.name: function.unread for function in functions_in(trees)}
    assert unread == {"bound": {"scores"}, "audit": {"significance"}, "plan": {"delta"}}


@pytest.mark.parametrize("adjacency", Adjacency)
def test_an_audit_with_shuffled_batches_stands_beside_the_bounds_of_its_adjacency(adjacency):
    """In each pass, a record moves one sum by C under zero-out adjacency, by 2 C if replaced."""
    settings = {"sample_rate": 0.25, "canary_period": None, "delta": 1e-4}
    stage = AccountingStage(
        adjacency=adjacency, record_steps=(8, 20), batches_per_pass=4, **settings
    )
    bounds = upper_bounds(stage, noise_multiplier=2.5)
    expected = [gdp_epsilon(mu=sqrt(passes) / 2.5, delta=1e-4) for passes in (2, 5)]
    if adjacency is Adjacency.ZERO_OUT:
        assert bounds["epsilon_upper_add_remove"].tolist() == pytest.approx(expected, rel=1e-6)
    else:
        assert (bounds["epsilon_upper_add_remove"] > expected).all()
    replaced = [gdp_epsilon(mu=2 * sqrt(passes) / 2.5, delta=1e-4) for passes in (2, 5)]
    assert bounds["epsilon_upper_substitute"].tolist() == pytest.approx(replaced, rel=1e-6)
