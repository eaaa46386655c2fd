"""Tests with the arguments `name` and `kind` run for every registered model on every kind of input."""

from zoo import cases


def pytest_generate_tests(metafunc):
    if {"name", "kind"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("name", "kind"), list(cases()))
