"""The table of datasets: names, sizes, publishers' files, where they come from, and their checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Published:
    """One published file: checksum of its content as we read it, and of what is downloaded for it."""

    content: str  # "sha256:…" or "md5:…" of the content after gunzip
    download: str = ""  # "md5:…" of the file at the publisher; "" if it comes inside an archive


@dataclass(frozen=True)
class Source:
    """One dataset: what it holds and how its files are called."""

    name: str
    title: str
    kind: Literal["embedded", "idx", "cifar", "npz"]
    channels: int
    size: tuple[int, int]  # height, width
    classes: int
    train: int
    test: int  # samples in the default test pool
    files: Mapping[str, Published] = field(default_factory=dict)
    url: str = ""  # files are at url + file name; for CIFAR-10 the archive itself; "" = cannot be downloaded
    also: tuple[str, ...] = ()  # further folders to look in
    # Other copies that are known: sha256 over one split's images and labels -> what to say of it ("": whole).
    known: Mapping[str, str] = field(default_factory=dict)


TRAIN_X, TRAIN_Y = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_X, TEST_Y = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"

CIFAR_BIN, CIFAR_PY = "cifar-10-batches-bin", "cifar-10-batches-py"
CIFAR_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
CIFAR_ARCHIVE = "md5:c32a1d4ab5d03f1284b67883e8d87530"

MNIST = {
    TRAIN_X: Published(
        "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    TRAIN_Y: Published(
        "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "md5:d53e105ee54ea40749a09fcbcd1e9432",
    ),
    TEST_X: Published(
        "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "md5:9fb629c4189551a2d022fa330f9573f3",
    ),
    TEST_Y: Published(
        "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "md5:ec29112dd5afa0611ce80d1b7f02629c",
    ),
}
FASHION = {
    TRAIN_X: Published(
        "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    TRAIN_Y: Published(
        "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "md5:25c81989df183df01b3e8a0aad5dffbe",
    ),
    TEST_X: Published(
        "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "md5:bef4ecab320f06d8554ea6380940ec79",
    ),
    TEST_Y: Published(
        "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ),
}
CIFAR = {
    f"{CIFAR_BIN}/data_batch_1.bin": Published("md5:5dd7e06a14cb22eb9f671a540d1b7c25"),
    f"{CIFAR_BIN}/data_batch_2.bin": Published("md5:5ea93a67294ea407fff1d09f752e9692"),
    f"{CIFAR_BIN}/data_batch_3.bin": Published("md5:942cd6a4bcdd0dd3c604fbe906cb4421"),
    f"{CIFAR_BIN}/data_batch_4.bin": Published("md5:ae636b3ba5c66a11e91e8cb52e771fcb"),
    f"{CIFAR_BIN}/data_batch_5.bin": Published("md5:53f37980c15c3d472c316c40844f3f0d"),
    f"{CIFAR_BIN}/test_batch.bin": Published("md5:803d5f7f4d78ea53de84dbe85f74fb6d"),
    f"{CIFAR_PY}/data_batch_1": Published("md5:c99cafc152244af753f735de768cd75f"),
    f"{CIFAR_PY}/data_batch_2": Published("md5:d4bba439e000b95fd0a9bffe97cbabec"),
    f"{CIFAR_PY}/data_batch_3": Published("md5:54ebc095f3ab1f0389bbae665268c751"),
    f"{CIFAR_PY}/data_batch_4": Published("md5:634d18415352ddfa80567beed471001a"),
    f"{CIFAR_PY}/data_batch_5": Published("md5:482c414d41f54cd18b22e5b47cb7c3cb"),
    f"{CIFAR_PY}/test_batch": Published("md5:40351d587109b95175f43aff81a1287e"),
}
MEDMNIST_URL = "https://zenodo.org/records/10519652/files/"


def _npz(name: str, md5: str) -> dict[str, Published]:
    return {f"{name}.npz": Published(f"md5:{md5}", f"md5:{md5}")}


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("digits", "Optical digits (scikit-learn, embedded)", "embedded", 1, (8, 8), 10, 1347, 450),
        Source(
            "mnist", "MNIST", "idx", 1, (28, 28), 10, 60_000, 10_000, MNIST,
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        Source(
            "fashion-mnist", "Fashion-MNIST", "idx", 1, (28, 28), 10, 60_000, 10_000, FASHION,
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist
        ),
        Source(
            "cifar10", "CIFAR-10", "cifar", 3, (32, 32), 10, 50_000, 10_000, CIFAR,
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        ),
        Source(
            "pathmnist", "PathMNIST (MedMNIST v2)", "npz", 3, (28, 28), 9, 89_996, 10_004,
            _npz("pathmnist", "a8b06965200029087d5bd730944a56c1"), MEDMNIST_URL,
            known={
                "c9a4b5eb441fc6b4b3180d0a427ac28dff6ac0b495ba2572ff5edb7886706189":
                    "training part cut to the first 5,000 images of each class",
                "8b9d331a896d857023cf3fdebc68008f451089e5e633eff9484094ddeb7d9ba5": "",
                "c0782db1d0b6b21ca8301ffc335a8661a174d9f449c002b5b2ff553fb533f76b": "",
            },
        ),
        Source(
            "tissuemnist", "TissueMNIST (MedMNIST v2)", "npz", 1, (28, 28), 8, 165_466, 23_640,
            _npz("tissuemnist", "ebe78ee8b05294063de985d821c1c34b"), MEDMNIST_URL,
        ),
        Source(
            "mednist28", "MedNIST at 28x28, stand-in for TissueMNIST", "npz", 1, (28, 28), 6, 30_000, 9_000,
            {"mednist28.npz": Published("")},
            known={
                "0c65e77e0d42ad77dabb3714bba0241d4a096c24cd8df6e0369b31132eab91be":
                    "MedNIST at 28x28 stands in for TissueMNIST",
                "6cfcc649faac8b54de4debf3e4530ee276d69a30902c75cbf2e2b16bc0135fea": "",
                "b25a7333ef44e99c0fadd91abc9bbb04c806e23bd1de158780b865ab88acfbee": "",
            },
        ),
    )
}  # fmt: skip
