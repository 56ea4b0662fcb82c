"""Transformer layers and stacks: torch's results, gradients and names."""

from typing import Any

import numpy as np
import pytest

from psframework import nn, optim
from psframework.autograd import tensor
from psframework.backend import bfloat16
from psframework.errors import ArgumentError
from psframework.nn import functional as F

TIME, OTHER, BATCH, WIDTH, HEADS, FORWARD = 4, 5, 2, 6, 3, 7


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def build(module: Any, kind: str, dtype: Any, options: dict[str, Any]) -> Any:
    """Two layers and a norm, of our modules or torch's."""
    options = {"dropout": 0.0, **options, "dtype": dtype}
    layer = getattr(module, f"Transformer{kind}Layer")(WIDTH, HEADS, FORWARD, **options)
    norm = module.LayerNorm(WIDTH, dtype=dtype)
    return getattr(module, f"Transformer{kind}")(layer, 2, norm)


def compare(
    torch: Any, kind: str, options: dict[str, Any], inputs: list[np.ndarray], how: dict[str, Any]
) -> None:
    nn.manual_seed(0)
    ours = build(nn, kind, np.float64, options)
    for i, (_, parameter) in enumerate(ours.named_parameters()):
        parameter.data += 0.1 * draw(*parameter.shape, seed=i)  # no two layers alike, no bias zero
    theirs = build(torch.nn, kind, torch.float64, options)
    theirs.load_state_dict({name: torch.tensor(array) for name, array in ours.state_dict().items()})
    leaves = [tensor(array, requires_grad=True) for array in inputs]
    others = [torch.tensor(array, requires_grad=True) for array in inputs]
    out = ours(*leaves, **how)
    masks = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in how.items()}
    if how.get("is_causal"):
        masks["mask"] = torch.nn.Transformer.generate_square_subsequent_mask(TIME, dtype=torch.float64)
    expected = theirs(*others, **masks)
    np.testing.assert_allclose(out.data, expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    seed = draw(*out.shape)
    out.backward(seed)
    expected.backward(torch.tensor(seed))
    for leaf, other in zip(leaves, others):
        np.testing.assert_allclose(leaf.grad, other.grad.numpy(), rtol=1e-9, atol=1e-10)
    for name, parameter in ours.named_parameters():
        wanted = theirs.get_parameter(name).grad.numpy()
        np.testing.assert_allclose(parameter.grad, wanted, rtol=1e-9, atol=1e-10, err_msg=name)


PADDING = np.array([[False, False, False, True], [False] * 4])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm_first": True, "activation": "gelu", "batch_first": True},
    {"bias": False, "layer_norm_eps": 0.1},
]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    "how", [{}, {"is_causal": True}, {"src_key_padding_mask": PADDING}], ids=["plain", "causal", "padding"]
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_encoder_is_torchs(options: dict[str, Any], how: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    shape = (BATCH, TIME, WIDTH) if options.get("batch_first") else (TIME, BATCH, WIDTH)
    compare(torch, "Encoder", options, [draw(*shape)], how)


@pytest.mark.oracle
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_decoder_is_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    first = options.get("batch_first")
    inputs = [draw(BATCH, t, WIDTH) if first else draw(t, BATCH, WIDTH) for t in (TIME, OTHER)]
    how = {
        "tgt_mask": np.triu(np.full((TIME, TIME), -np.inf), 1),
        "memory_mask": draw(TIME, OTHER),
        "memory_key_padding_mask": np.where(np.arange(OTHER) < [[3], [5]], 0.0, -np.inf),
    }
    compare(torch, "Decoder", options, inputs, how)


def test_without_batch() -> None:
    nn.manual_seed(0)
    encoder, x = build(nn, "Encoder", np.float64, {"batch_first": True}), draw(TIME, WIDTH)
    np.testing.assert_allclose(encoder(x).data, encoder(x[None]).data[0], atol=1e-14)
    decoder, memory = build(nn, "Decoder", np.float64, {"batch_first": True}), draw(OTHER, WIDTH)
    out = decoder(x, memory, tgt_is_causal=True)
    np.testing.assert_allclose(
        out.data, decoder(x[None], memory[None], tgt_is_causal=True).data[0], atol=1e-14
    )


def test_causal_layers_do_not_see_the_future() -> None:
    nn.manual_seed(0)
    encoder = build(nn, "Encoder", np.float64, {})
    x = draw(TIME, BATCH, WIDTH)
    before = encoder(x, is_causal=True).data
    x[2:] += 1
    after = encoder(x, is_causal=True).data
    np.testing.assert_array_equal(after[:2], before[:2])
    assert not np.isclose(after[2:], before[2:]).any()


def test_layers_of_a_stack_begin_equal_and_are_apart() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FORWARD)
    stack = nn.TransformerEncoder(layer, 3)
    states = [one.state_dict() for one in stack.layers]
    np.testing.assert_equal(states[0], states[2])
    stack.layers[0].linear1.weight.data[...] = 0
    assert stack.layers[1].linear1.weight.data.any() and layer.linear1.weight.data.any()
    assert len(list(stack.parameters())) == 3 * len(list(layer.parameters()))


def test_dropout_acts_in_training_only() -> None:
    layer, x = nn.TransformerEncoderLayer(WIDTH, HEADS, FORWARD, 0.5), draw(TIME, BATCH, WIDTH)
    assert not np.allclose(layer(x).data, layer(x).data)
    layer.eval()
    np.testing.assert_array_equal(layer(x).data, layer(x).data)


def test_any_function_is_an_activation() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FORWARD, 0.0, activation=lambda x: x * 0)
    other = nn.TransformerEncoderLayer(WIDTH, HEADS, FORWARD, 0.0)
    other.load_state_dict(layer.state_dict())
    other.linear2.weight.data[...] = 0
    x = draw(TIME, BATCH, WIDTH)
    np.testing.assert_allclose(layer(x).data, other(x).data, rtol=1e-6)


def losses(dtype: Any) -> list[float]:
    """Of a small language model that learns 4 sequences of 16 symbols by heart."""
    nn.manual_seed(0)
    ids = np.random.default_rng(0).integers(0, 12, (4, 17))
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32))
    model = nn.ModuleDict({"table": nn.Embedding(12, 32), "encoder": encoder, "head": nn.Linear(32, 12)})
    model.to(dtype)
    optimizer, scaler, found = optim.Adam(model.parameters(), lr=3e-3), optim.GradScaler(), []
    for _ in range(60):
        scores = model["head"](model["encoder"](model["table"](ids[:, :-1]), is_causal=True))
        assert scores.dtype == dtype
        loss = F.cross_entropy(scores.astype(np.float32).reshape(-1, 12), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("dtype", "near"), [(np.float16, 2e-3), (bfloat16, 1e-2)], ids=["float16", "bfloat16"]
)
def test_it_learns_in_16_bits_as_in_32(dtype: Any, near: float) -> None:
    exact, narrow = losses(np.float32), losses(dtype)
    assert exact[0] > 2.5 and max(exact[-1], narrow[-1]) < 0.4
    np.testing.assert_allclose(narrow[:25], exact[:25], rtol=0, atol=near)  # then differences grow


def test_misuse_is_refused() -> None:
    with pytest.raises(ArgumentError, match="activation must be 'relu', 'gelu' or a function, not 'tanh'"):
        nn.TransformerEncoderLayer(WIDTH, HEADS, activation="tanh")
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, FORWARD)
    with pytest.raises(ArgumentError, match="TransformerDecoder: num_layers=0"):
        nn.TransformerDecoder(layer, 0)
