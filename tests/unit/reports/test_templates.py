import ast
import math
import re

import nbformat
import pytest

from workbench.errors import CheckFailedError, UsageError
from workbench.numerics import jsonio
from workbench.reports import build_templates
from workbench.reports.templates import check_parameters, find_template, names, read_parameters


@pytest.fixture(scope="module")
def incident():
    return find_template("incident")


@pytest.mark.parametrize("script", build_templates.scripts(), ids=lambda path: path.stem)
def test_notebook_and_script_agree(script):
    text = build_templates.build(script)
    assert script.with_suffix(".ipynb").read_text(encoding="utf-8") == text
    nbformat.validate(nbformat.reads(text, 4))
    jsonio.loads(text)


@pytest.mark.parametrize("script", build_templates.scripts(), ids=lambda path: path.stem)
def test_cells_are_short_and_parameters_typed_and_explained(script):
    node = nbformat.reads(build_templates.build(script), 4)
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    assert all(len(cell.source.splitlines()) <= 10 for cell in code)
    (parameters,) = [cell for cell in code if "parameters" in cell.metadata.tags]
    for line in parameters.source.splitlines():
        assert re.fullmatch(r"[a-z_]+: (str|int|float|bool) = .+  # .{10,}", line), line
    whole = "\n".join(cell.source for cell in code)
    ast.parse(whole)
    assert "FigureWidget" not in whole
    assert "/home" not in whole


def test_check_tells_a_notebook_that_does_not_agree(tmp_path, monkeypatch):
    script = tmp_path / "own.py"
    script.write_text('# %% parameters tags=["parameters"]\nx: int = 1  # a number for the test\n')
    monkeypatch.setattr(build_templates, "template_root", lambda: tmp_path)
    with pytest.raises(CheckFailedError, match=r"own\.ipynb"):
        build_templates.main(["--check"])
    assert build_templates.main([]) == 0
    assert build_templates.main(["--check"]) == 0


def test_cell_line_that_is_not_understood_is_refused(tmp_path):
    script = tmp_path / "own.py"
    script.write_text("# %%parameters\n")
    with pytest.raises(UsageError, match="not understood"):
        build_templates.build(script)


def test_parameters_are_found_with_type_and_help(incident):
    assert incident.parameters["bundle"].type == "str"
    assert incident.parameters["show_samples"].type == "bool"
    assert "Path of the bundle" in incident.parameters["bundle"].help
    assert incident.digest.startswith("sha256:")
    assert "incident" in names()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bundel": "x"}, r"no parameter 'bundel'.*bundle"),
        ({"show_samples": "yes"}, "type bool, but 'yes' is of type str"),
        ({"show_samples": 1}, "type bool, but 1 is of type int"),
        ({"title": 3}, "type str"),
        ({"bundle": None}, "type str"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(incident, given, message):
    with pytest.raises(UsageError, match=message):
        check_parameters(incident, given)


@pytest.fixture
def numbers(tmp_path):
    script = tmp_path / "numbers.py"
    script.write_text(
        '# %% parameters tags=["parameters"]\n'
        "threshold: float = 1.0  # largest value allowed\n"
        "count: int = 1  # how many are drawn\n"
    )
    script.with_suffix(".ipynb").write_text(build_templates.build(script))
    return find_template(script.with_suffix(".ipynb"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_no_notebook_can_hold_are_refused(numbers, value):
    with pytest.raises(UsageError, match="refuse to open"):
        check_parameters(numbers, {"threshold": value})


def test_whole_number_is_a_float_but_a_truth_value_is_no_number(numbers):
    assert check_parameters(numbers, {"threshold": 2}) == {"threshold": 2.0}
    for name in ("threshold", "count"):
        with pytest.raises(UsageError, match="bool"):
            check_parameters(numbers, {name: True})


@pytest.mark.parametrize("name", ["incidents", "../incident", "/no/such.ipynb"])
def test_unknown_template_is_refused(name):
    with pytest.raises(UsageError, match=r"no report template|does not exist"):
        find_template(name)


def test_template_without_a_parameters_cell_is_refused(tmp_path):
    path = tmp_path / "bare.ipynb"
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    path.write_text(nbformat.writes(node))
    with pytest.raises(UsageError, match="no cell tagged 'parameters'"):
        find_template(path)


def test_texts_are_read_by_the_declared_type(numbers):
    assert read_parameters("incident", {"title": "nan", "show_samples": "True"}) == {
        "title": "nan",
        "show_samples": True,
    }
    assert read_parameters(numbers.path, {"threshold": "2", "count": "3"}) == {
        "threshold": 2.0,
        "count": 3,
    }


@pytest.mark.parametrize(
    "texts", [{"count": "2.5"}, {"threshold": "inf"}, {"threshold": "x"}, {"other": "1"}]
)
def test_texts_of_another_type_are_refused(numbers, texts):
    with pytest.raises(UsageError):
        read_parameters(numbers.path, texts)


PARAMETERS = '# %% parameters tags=["parameters"]\nbundle: str = ""  # path of the bundle to read\n'


@pytest.mark.parametrize("given", ["", "mine.py", "mine"])
def test_template_of_ones_own_is_found_by_folder_file_or_name(tmp_path, given):
    (tmp_path / "mine.py").write_text(PARAMETERS)
    (tmp_path / "helper.py").write_text("WORD = 1\n")
    found = find_template(tmp_path / given)
    assert (found.name, found.modules) == ("mine", (tmp_path.resolve(),))
    assert list(found.parameters) == ["bundle"]
    (tmp_path / "mine.ipynb").write_text(build_templates.build(tmp_path / "mine.py"))
    assert find_template(tmp_path / given).digest == found.digest
    assert find_template(tmp_path / "mine.ipynb").digest == found.digest


def test_folder_with_several_templates_or_none_names_them(tmp_path):
    with pytest.raises(UsageError, match=r"has 0 templates \(none\)"):
        find_template(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(PARAMETERS)
    with pytest.raises(UsageError, match=r"has 2 templates \(one, two\).*--template \S+one"):
        find_template(tmp_path)


def test_parameter_that_papermill_does_not_read_is_refused(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(f"{PARAMETERS}limits: str = ''  # such as loss=3, norm=2\n")
    with pytest.raises(UsageError, match="sets 'limits' in a way that papermill does not read"):
        find_template(script)


def test_what_a_cell_does_travels_with_the_notebook(tmp_path):
    from workbench.reports.execute import doing

    script = tmp_path / "own.py"
    script.write_text(
        f'{PARAMETERS}\n# %% load doing="Reading"\n1\n# %% [markdown]\n# ## Losses\n# %% rows\n2\n'
    )
    cells = nbformat.reads(build_templates.build(script), 4).cells
    assert [doing(cells, i) for i in (1, 3)] == ["Reading", "Writing: Losses"]


@pytest.mark.parametrize("name", names())
def test_every_template_is_documented_and_takes_what_all_take(name, repository):
    found = find_template(name)
    of_bundles = {"bundle", "step", "trust"} if found.bundles else set()
    assert of_bundles | {"title", "author"} <= found.parameters.keys()
    assert f"| `{name}` |" in (repository / "docs" / "templates.md").read_text(encoding="utf-8")
