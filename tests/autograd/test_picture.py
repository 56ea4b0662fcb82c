"""What pictures are made of is well-formed, whatever the names."""

import xml.etree.ElementTree as ElementTree

import pytest

from psframework.autograd.picture import Box, Drawing, edge, page, save, size, text
from psframework.errors import ArgumentError

SVG = "{http://www.w3.org/2000/svg}"


def test_a_page_with_boxes_and_an_arrow_between_them():
    upper, lower = Box(["a<b>", "small"], "op"), Box(["c"], "leaf", "what it is & does")
    parts = [edge([(50, 20), (80, 92)], upper, lower, "message"), upper.at(50, 20), lower.at(80, 92)]
    root = ElementTree.fromstring(page(200, 100, parts, arrows="arrow message"))
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("200", "100", "0 0 200 100")
    assert [marker.get("id") for marker in root.iter(f"{SVG}marker")] == ["arrow", "message"]
    (arrow,) = root.findall(f"{SVG}path")
    assert (arrow.get("class"), arrow.get("marker-end")) == ("message", "url(#message)")
    # From the lower end of one box to the upper end of the other.
    assert arrow.get("d").startswith(f"M50.0 {20 + upper.height / 2:.1f}C")
    assert arrow.get("d").endswith(f" 80.0 {92 - lower.height / 2:.1f}")
    groups = root.findall(f"{SVG}g")
    assert [group.find(f"{SVG}title").text for group in groups] == ["a<b>", "what it is & does"]
    texts = [[(line.text, line.get("class")) for line in group.findall(f"{SVG}text")] for group in groups]
    assert texts == [[("a<b>", None), ("small", "small")], [("c", None)]]


def test_a_box_is_as_wide_as_its_longest_line():
    assert Box(["ab", "abcdef"], "").width == Box(["abcdef"], "").width > Box(["ab"], "").width
    assert Box(["a", "b"], "").height > Box(["a"], "").height


def test_text_that_xml_cannot_write():
    assert text('a\x00\n<&"\ud800é') == "a??&lt;&amp;&quot;?é"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1.02e+03 B"),
        (1024, "1 KiB"),
        (2560, "2.5 KiB"),
        (5 << 20, "5 MiB"),
        (3 << 40, "3.07e+03 GiB"),
    ],
)
def test_bytes_for_people(count, shown):
    assert size(count) == shown


def test_a_drawing_is_saved_where_it_is_asked_for(tmp_path):
    drawing = save("<svg/>", tmp_path / "new" / "a.svg")
    assert drawing == Drawing("<svg/>", tmp_path / "new" / "a.svg")
    assert drawing.path.read_text() == drawing._repr_svg_() == "<svg/>"
    assert save("<svg/>", None) == Drawing("<svg/>", None)


@pytest.mark.parametrize("name", ["a.SVG", "a"])
def test_a_suffix_in_capitals_and_none_are_svg(name, tmp_path):
    assert save("<svg/>", tmp_path / name).path.read_text() == "<svg/>"


@pytest.mark.parametrize("name", ["a.gif", "a.svg.png", "run-1.2"])
def test_nothing_is_written_under_the_suffix_of_another_kind_of_file(name, tmp_path):
    with pytest.raises(ArgumentError, match=rf"{name}' can't be written: .* ends in \.svg, such as"):
        save("<svg/>", tmp_path / "new" / name)
    assert not list(tmp_path.iterdir())
