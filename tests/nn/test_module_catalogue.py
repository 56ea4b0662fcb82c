"""The catalogue of modules in `tests/support/module_cases` names every public class, and no other."""

from op_case import collect

from psframework import nn

CASES = list(collect("module_cases"))
BASES = {"Module", "Parameter"}


def test_the_catalogue_is_complete():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    covered = {name for case in CASES for name in case.names}
    public = {
        name
        for name in nn.__all__
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    assert not public - BASES - covered, "modules without a case"
    assert not covered - public, "cases of modules that are not public"
