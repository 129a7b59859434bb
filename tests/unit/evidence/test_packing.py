import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import BundleError
from workbench.evidence import pack_tensors, unpack_tensors
from workbench.evidence.packed_names import logical_names
from workbench.numerics import bits_equal, jsonio

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore:ComplexHalf")


def through(tensors):
    packed = pack_tensors(tensors)
    specs = jsonio.loads(jsonio.dumps(packed.specs))
    names = logical_names(packed.stored, specs)
    # Fresh memory, as a file gives it.
    return unpack_tensors(lambda name: packed.stored[name].clone(), specs, names)


def assert_same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.requires_grad == b.requires_grad
    assert bits_equal(a, b)


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_every_dtype_and_shape_comes_back_bit_by_bit(dtype, shape):
    n = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.arange(n).to(torch.uint8) * 37
    t = (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(shape)
    (back,) = through({"t": t}).values()
    assert_same(t, back)


def test_nan_payloads_and_signed_zeros_survive():
    bits = torch.tensor([0x7FC00001, -0x80000000, 0x7F800001, 0x00000001], dtype=torch.int32)
    (back,) = through({"t": bits.view(torch.float32)}).values()
    assert torch.equal(back.view(torch.int32), bits)


@st.composite
def views(draw):
    """A tensor made by a few view operations, and its base."""
    sides = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    base = torch.arange(float(torch.Size(sides).numel())).reshape(sides)
    t = base
    for _ in range(draw(st.integers(0, 3))):
        dim = draw(st.integers(0, t.dim() - 1)) if t.dim() else 0
        kind = draw(st.sampled_from(["transpose", "slice", "step", "expand", "select", "none"]))
        if kind == "transpose" and t.dim() > 1:
            t = t.transpose(0, dim)
        elif kind == "slice" and t.dim() and t.shape[dim] > 1:
            t = t.narrow(dim, 1, t.shape[dim] - 1)
        elif kind == "step" and t.dim():
            t = t[(slice(None),) * dim + (slice(None, None, 2),)]
        elif kind == "expand":
            t = t.unsqueeze(0).expand(draw(st.integers(1, 3)), *t.shape)
        elif kind == "select" and t.dim() > 1:
            t = t.select(dim, 0)
    return base, t


@given(views())
def test_any_view_comes_back_with_its_strides(pair):
    _, t = pair
    (back,) = through({"t": t}).values()
    assert_same(t, back)
    wide = [i for i, n in enumerate(t.shape) if n > 1]
    assert [back.stride(i) for i in wide] == [t.stride(i) for i in wide]


@given(views(), st.randoms())
def test_views_of_one_storage_share_memory_again(pair, random):
    base, t = pair
    names = ["base", "view", "other"]
    random.shuffle(names)
    tensors = dict(zip(names, (base, t, base.clone()), strict=True))
    back = through(tensors)
    for name, original in tensors.items():
        assert_same(original, back[name])
    # Writing through the base must show in the view exactly as it does in the original.
    base_name, view_name, other_name = names
    base.fill_(-1.0)
    back[base_name].fill_(-1.0)
    assert torch.equal(back[view_name], t)
    assert not (back[other_name] == -1.0).any()


def test_tied_weights_are_stored_once_and_stay_tied():
    w = torch.nn.Parameter(torch.randn(6, 4))
    packed = pack_tensors({"embed.weight": w, "head.weight": w, "head.weight_t": w.t()})
    assert sum(t.numel() for t in packed.stored.values()) == 24
    back = through({"embed.weight": w, "head.weight": w, "head.weight_t": w.t()})
    assert back["embed.weight"].requires_grad
    with torch.no_grad():
        back["embed.weight"][0, 1] = 42.0
    assert back["head.weight"][0, 1] == 42.0
    assert back["head.weight_t"][1, 0] == 42.0


def test_a_flat_parameter_and_its_pieces_stay_one():
    flat = torch.randn(10)
    back = through({"a": flat[:4], "b": flat[4:].view(2, 3), "flat": flat})
    back["flat"].zero_()
    assert not back["a"].any()
    assert not back["b"].any()


def test_pieces_that_do_not_overlap_are_stored_apart():
    huge = torch.zeros(100_000)
    packed = pack_tensors({"first": huge[:3], "last": huge[-3:]})
    assert sum(t.numel() for t in packed.stored.values()) == 6
    assert packed.specs == {}


def test_interleaved_pieces_share_what_they_span():
    base = torch.arange(6.0)
    back = through({"even": base[::2], "odd": base[1::2]})
    assert back["even"].tolist() == [0, 2, 4]
    assert back["odd"].tolist() == [1, 3, 5]
    assert back["even"].stride() == (2,)


def test_views_of_another_dtype_share_too():
    base = torch.arange(4, dtype=torch.int32)
    back = through({"bits": base, "floats": base.view(torch.float32)})
    back["floats"].fill_(1.0)
    assert (back["bits"] == 0x3F800000).all()


def test_an_expanded_value_is_stored_small():
    t = torch.ones(1).expand(1000, 1000)
    packed = pack_tensors({"t": t})
    assert sum(s.numel() * s.element_size() for s in packed.stored.values()) == 4
    (back,) = through({"t": t}).values()
    assert back.stride() == (0, 0)
    assert back.shape == (1000, 1000)


def test_a_sliver_of_a_large_tensor_does_not_drag_it_along():
    t = torch.randn(50, 10_000)[:, 3]
    packed = pack_tensors({"t": t})
    assert sum(s.numel() for s in packed.stored.values()) == 50
    (back,) = through({"t": t}).values()
    assert bits_equal(t, back)


@pytest.mark.parametrize("coalesced", [True, False])
def test_sparse_coo(coalesced):
    t = torch.sparse_coo_tensor([[2, 2, 0]], [1.0, float("nan"), 3.0], (4,))
    t = t.coalesce() if coalesced else t
    (back,) = through({"t": t}).values()
    assert back.layout is torch.sparse_coo
    assert back.is_coalesced() == coalesced
    assert torch.equal(back._indices(), t._indices())
    assert bits_equal(back._values(), t._values())


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_compressed_sparse(layout):
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    (back,) = through({"t": dense.to_sparse(layout=layout)}).values()
    assert back.layout is layout
    assert torch.equal(back.to_dense(), dense)


def test_meta_tensors_keep_their_shape_and_quantised_ones_are_missing():
    quantised = torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)
    packed = pack_tensors({"m": torch.empty(3, 2, device="meta"), "q": quantised})
    assert "quantised" in packed.specs["q"]["missing"]
    back = through({"m": torch.empty(3, 2, device="meta"), "q": quantised})
    assert list(back) == ["m"]
    assert (back["m"].device.type, back["m"].shape) == ("meta", (3, 2))


def test_lazily_conjugated_and_negated_views_are_stored_by_value():
    t = torch.tensor([1 + 2j, 3 - 4j])
    back = through({"conj": t.conj(), "imag": t.conj().imag, "t": t})
    assert back["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert back["imag"].tolist() == [-2.0, 4.0]
    assert back["t"].tolist() == [1 + 2j, 3 - 4j]


def test_names_of_any_kind_are_kept_apart():
    tensors = {
        "s": torch.eye(2).to_sparse(),
        "s:values": torch.ones(1),
        "storage:0": torch.zeros(1),
    }
    base = torch.arange(6.0)
    tensors |= {"even": base[::2], "odd": base[1::2]}
    back = through(tensors)
    assert set(back) == set(tensors)
    assert back["s:values"].tolist() == [1.0]
    assert back["storage:0"].tolist() == [0.0]
    assert torch.equal(back["s"].to_dense(), torch.eye(2))


def test_packing_a_snapshot_leaves_it_shared():
    t = torch.randn(100)
    snapshot = torch._lazy_clone(t)
    pack_tensors({"t": snapshot})
    assert torch._C._is_cow_tensor(t)


@pytest.mark.parametrize(
    "spec",
    [
        {"stride": [10**9]},
        {"stride": [-1]},
        {"stride": [0]},
        {"stride": [1, 1]},
        {"stride": "1"},
        {"dtype": "nn", "shape": [4]},
        {"dtype": "complex128", "shape": [4]},
        {"dtype": "float64", "shape": [99]},
        {"dtype": 3, "shape": [4]},
        {"storage": "absent", "offset": 0, "dtype": "float32", "shape": [1], "stride": [1]},
        {"storage": "u", "offset": 16, "dtype": "float32", "shape": [1], "stride": [1]},
        {"storage": "u", "offset": -4, "dtype": "float32", "shape": [1], "stride": [1]},
        {"storage": "u", "offset": 1, "dtype": "float32", "shape": [1], "stride": [1]},
        {"storage": "u", "offset": 0, "dtype": "float32", "shape": [2], "stride": [100]},
        {"storage": "u", "offset": 0, "dtype": "float32", "shape": [10**12], "stride": [0]},
        {"storage": ["u"], "offset": 0, "dtype": "float32", "shape": [1], "stride": [1]},
        {"layout": "sparse_coo", "shape": [2], "parts": {"indices": "i", "values": "u"}},
        {"layout": "sparse_csr", "shape": [2, 2], "parts": {}},
        {"layout": "strange", "shape": [2], "parts": {"values": "u"}},
        {"layout": "sparse_coo"},
        {"meta": True, "shape": [-1], "dtype": "float32"},
        {"requires_grad": True, "dtype": "int32", "shape": [4]},
    ],
)
def test_a_spec_that_does_not_fit_is_a_bundle_error(spec):
    stored = {
        "t": torch.zeros(4),
        "u": torch.zeros(4),
        "i": torch.tensor([[7, 0, 1, 1]]),
    }
    with pytest.raises(BundleError):
        unpack_tensors(lambda name: stored[name].clone(), {"t": spec}, ["t"])
