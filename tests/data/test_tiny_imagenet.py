"""Tiny ImageNet in upstream's layout: folders of JPEGs, written here by Pillow."""

import numpy as np
import pytest

from fljax.data import load, status

Image = pytest.importorskip("PIL.Image")
NAMES = ["n02124075", "n01443537", "n04067472"]  # not sorted, as upstream's are not


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))


def save(path, colour, size=64):
    """One colour all over, which JPEG keeps up to rounding; a single number makes a grey image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if isinstance(colour, tuple) else "L", (size, size), colour).save(path, "JPEG")


def colour(label, i):
    return (80 * label, 40 * i, 200)


def write(folder):
    inside = folder / "tiny-imagenet-200"
    for label, name in enumerate(NAMES):
        for i in range(2):
            save(inside / "train" / name / "images" / f"{name}_{i}.JPEG", colour(label, i))
        (inside / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t63\t63\n")
    (inside / "wnids.txt").write_text("\n".join(NAMES))
    (inside / "words.txt").write_text("n00001740\tentity\n")
    lines = []
    for i, label in enumerate((2, 0, 1, 1)):
        save(inside / "val" / "images" / f"val_{i}.JPEG", 50 if i == 3 else colour(label, 3))
        lines.append(f"val_{i}.JPEG\t{NAMES[label]}\t0\t32\t44\t62\n")
    (inside / "val" / "val_annotations.txt").write_text("".join(lines))
    save(inside / "test" / "images" / "test_0.JPEG", colour(0, 0))
    return inside


def check(made):
    assert (made.x.shape, made.x.dtype) == ((10, 64, 64, 3), np.uint8)
    assert (made.classes, made.train_size) == (3, 6)
    np.testing.assert_array_equal(made.y, [0, 0, 1, 1, 2, 2, 2, 0, 1, 1])
    expected = [colour(label, i) for label in range(3) for i in range(2)]
    expected += [*(colour(label, 3) for label in (2, 0, 1)), (50, 50, 50)]
    middle = made.x[:, 32, 32].astype(int)
    assert np.abs(middle - np.array(expected)).max() <= 3


def test_upstreams_folder_is_read_and_cached(tmp_path):
    assert status()["tiny_imagenet"].startswith("not here: give folder=")
    with pytest.raises(ValueError, match=r"expected tiny_imagenet on this machine, got nothing; give folder="):
        load("tiny_imagenet")
    inside = write(tmp_path / "files")
    check(load("tiny_imagenet", folder=tmp_path / "files"))
    assert "cached in" in status()["tiny_imagenet"]
    check(load("tiny_imagenet"))
    check(load("tiny_imagenet", folder=inside))


def test_what_is_wrong_is_named_in_one_sentence(tmp_path):
    inside = write(tmp_path)
    table = inside / "val" / "val_annotations.txt"
    whole = table.read_text()
    for content, match in [
        ("", "empty table"),
        (whole + "val_9.JPEG\tn99\t0\t0\t1\t1\n", "'n99' for a class in line 5"),
        (whole + "<html>\n", "'' for a class in line 5"),
        (whole + f"val_9.JPEG\t{NAMES[0]}\n", r"got none or a damaged one in .*val_9\.JPEG"),
    ]:
        table.write_text(content)
        with pytest.raises(ValueError, match=match) as caught:
            load("tiny_imagenet", folder=tmp_path)
        assert "\n" not in str(caught.value)
    table.write_text(whole)
    image = inside / "train" / NAMES[1] / "images" / f"{NAMES[1]}_1.JPEG"
    for content in (b"<html>", image.read_bytes()[:400]):
        image.write_bytes(content)
        with pytest.raises(ValueError, match="damaged one in"):
            load("tiny_imagenet", folder=tmp_path)
    save(image, (1, 2, 3), size=32)
    with pytest.raises(ValueError, match="images of 64 x 64, got 32 x 32"):
        load("tiny_imagenet", folder=tmp_path)
    (inside / "wnids.txt").write_text("\n".join([*NAMES, NAMES[0]]))
    with pytest.raises(ValueError, match="name of each class once"):
        load("tiny_imagenet", folder=tmp_path)
    (inside / "wnids.txt").write_text("n99\n")
    with pytest.raises(ValueError, match="images of the class n99, got none"):
        load("tiny_imagenet", folder=tmp_path)
    (inside / "wnids.txt").unlink()
    with pytest.raises(ValueError, match=r"expected the file wnids\.txt in the folder"):
        load("tiny_imagenet", folder=tmp_path)
