"""Decoding of images in processes that may die: sizes, bounds, broken files and bombs."""

import concurrent.futures
import io
import os
import random
import signal
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayinfer.errors import BadImage
from rayinfer.images.decoding import ImageDecoder
from rayinfer.images.shapes import ImageShape
from rayinfer.predictions import ImageLimits
from rayinfer.predictors.warm_up import PNG
from support.services.polling import wait_until

SHAPE = ImageShape(height=24, width=24)
LIMITS = ImageLimits(max_bytes=200_000, max_pixels=1_000_000, max_side=2000)
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def decoder():
    decoder = ImageDecoder(SHAPE, LIMITS)
    yield decoder
    decoder.close()


def encoded(image, kind="PNG", **settings):
    out = io.BytesIO()
    image.save(out, kind, **settings)
    return out.getvalue()


def two_halves(width=40, height=40):
    """An image that is red on the left and blue on the right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 255
    return Image.fromarray(pixels)


def decode(decoder, content):
    return decoder.submit(content).result(TIMEOUT_S)


def refusal(decoder, content):
    with pytest.raises(BadImage) as caught:
        decode(decoder, content)
    return str(caught.value)


def png_of(width, height, data=b""):
    """A PNG whose header says so, whatever it holds."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_images_become_rgb_of_the_models_size(decoder, kind):
    pixels = decode(decoder, encoded(two_halves(), kind))
    assert (pixels.shape, pixels.dtype) == ((24, 24, 3), np.uint8)
    assert pixels[12, 2, 0] > 200 > pixels[12, 2, 2]
    assert pixels[12, 21, 2] > 200 > pixels[12, 21, 0]


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK", "I;16"])
def test_other_modes_become_rgb(decoder, mode):
    image = Image.new("I;16", (40, 40)) if mode == "I;16" else two_halves().convert(mode)
    assert decode(decoder, encoded(image, "JPEG" if mode == "CMYK" else "PNG")).shape == (24, 24, 3)


def test_a_rotated_photograph_is_turned_upright(decoder):
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    pixels = decode(decoder, encoded(two_halves(), "JPEG", exif=exif))
    assert pixels[12, 2, 2] > 200 > pixels[12, 2, 0]


def test_the_probe_is_an_image(decoder):
    assert len({tuple(pixel) for pixel in decode(decoder, PNG).reshape(-1, 3).tolist()}) == 1


def test_large_jpegs_and_cut_shapes_keep_the_middle():
    decoder = ImageDecoder(ImageShape(height=16, width=16, shortest_edge=20, resample=3))
    try:
        pixels = decode(decoder, encoded(two_halves(2400, 1600), "JPEG"))
    finally:
        decoder.close()
    assert pixels.shape == (16, 16, 3)
    assert pixels[8, 2, 0] > 200 > pixels[8, 2, 2]
    assert pixels[8, 13, 2] > 200 > pixels[8, 13, 0]


def animated(kind):
    return encoded(two_halves(), kind, save_all=True, append_images=[two_halves().rotate(90)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png_of(2001, 2), "2001 x 2 pixels, the limit is 2,000 a side"),
        (png_of(1500, 1500), "2,250,000 pixels, the limit is 1,000,000"),
        (png_of(2**31 - 1, 2**31 - 1), "the limit is 2,000 a side"),
        (bytes(200_001), "200,001 bytes, the limit is 200,000"),
        (animated("WEBP"), "several frames, the limit is 1"),
        (animated("PNG"), "several frames, the limit is 1"),
        (animated("GIF"), "no JPEG, PNG or WebP image"),
        (encoded(two_halves(), "TIFF"), "no JPEG, PNG or WebP image"),
        (encoded(two_halves(), "BMP"), "no JPEG, PNG or WebP image"),
        (b"", "no JPEG, PNG or WebP image"),
        (png_of(40, 40)[:33], "the image is broken"),  # behind its header
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no JPEG, PNG or WebP image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no JPEG, PNG or WebP image"),
        (png_of(500, 500, b"garbage"), "the image is broken"),
        (png_of(500, 500, zlib.compress(bytes(5))), "the image is broken"),
        (encoded(two_halves())[:-40], "the image is broken"),
        (encoded(two_halves(), "JPEG")[:-300], "the image is broken"),
    ],
)
def test_what_is_no_good_image_is_refused_with_the_reason(decoder, content, message):
    assert message in refusal(decoder, content)


def test_a_bomb_of_compressed_text_is_refused(decoder):
    content = bytearray(encoded(two_halves()))
    bomb = zlib.compress(bytes(50_000_000), 9)
    chunk = b"zTXt" + b"k\0\0" + bomb
    content[33:33] = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    refusal(decoder, bytes(content))
    assert decode(decoder, encoded(two_halves())).shape == (24, 24, 3)


def test_a_thousand_broken_files_cost_no_process(decoder):
    draw = random.Random(0)
    whole = [encoded(two_halves(), kind) for kind in ("PNG", "JPEG", "WEBP")]
    decode(decoder, whole[0])
    pids, num_refused = set(decoder.pids), 0
    futures = []
    for _ in range(1000):
        content = bytearray(draw.choice(whole))
        for _ in range(draw.randint(1, 20)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        futures.append(decoder.submit(bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])))
    for future in futures:
        if isinstance(future.exception(TIMEOUT_S), BadImage):
            num_refused += 1
        else:
            assert future.result().shape == (24, 24, 3)
    assert num_refused > 300
    assert pids <= set(decoder.pids)


def test_a_process_that_dies_fails_one_image_and_the_next_one_gets_another():
    decoder = ImageDecoder(SHAPE, num_processes=1, timeout_s=30)
    try:
        decode(decoder, PNG)
        (pid,) = decoder.pids
        os.kill(pid, signal.SIGSTOP)
        waiting = decoder.submit(PNG)
        assert not concurrent.futures.wait([waiting], 0.05).done
        os.kill(pid, signal.SIGKILL)
        assert isinstance(waiting.exception(TIMEOUT_S), BadImage)
        assert decode(decoder, PNG).shape == (24, 24, 3)
        assert decoder.pids != [pid]
    finally:
        decoder.close()


def test_a_process_that_does_not_answer_is_ended():
    decoder = ImageDecoder(SHAPE, num_processes=1, timeout_s=5)
    try:
        decode(decoder, PNG)
        (pid,) = decoder.pids
        os.kill(pid, signal.SIGSTOP)
        assert "cannot be decoded" in refusal(decoder, PNG)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
    finally:
        decoder.close()


def test_closing_ends_the_processes():
    decoder = ImageDecoder(SHAPE, num_processes=1)
    decode(decoder, PNG)
    (pid,) = decoder.pids
    decoder.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_process_that_runs_is_used_again_before_another_one_is_started():
    decoder = ImageDecoder(SHAPE, LIMITS)
    try:
        for _ in range(3):
            decode(decoder, PNG)
        assert len(decoder.pids) == 1
    finally:
        decoder.close()
