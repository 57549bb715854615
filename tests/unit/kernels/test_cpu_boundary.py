"""What the C++ decoder refuses, and what callers on several threads or in a fork may expect."""

import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from firstlight.kernels.cpu import extension

pytestmark = pytest.mark.skipif(
    not extension.instruction_sets(), reason="the C++ kernels cannot run here"
)
HIDDEN, VOCAB = 32, 64
NOTHING = np.empty(0, np.float32)


def decoder(threads: int) -> Any:
    native, random = extension.native(), np.random.default_rng(0)

    def matrix(outputs: int) -> Any:
        rows = random.standard_normal((outputs, HIDDEN)).astype(np.float32)
        return native.Matrix.from_floats("q8", rows)

    made = native.Decoder(
        kernels=extension.instruction_sets()[0],
        threads=threads,
        heads=2,
        kv_heads=1,
        head_dim=16,
        hidden=HIDDEN,
        intermediate=HIDDEN,
        vocab=VOCAB,
        rms_eps=1e-5,
        frequencies=[1.0] * 8,
    )
    ones = np.ones(HIDDEN, np.float32)
    made.add(
        attention_norm=ones,
        qkv=matrix(64),
        qkv_bias=NOTHING,
        q_norm=NOTHING,
        k_norm=NOTHING,
        output=matrix(HIDDEN),
        mlp_norm=ones,
        gate_up=matrix(2 * HIDDEN),
        down=matrix(HIDDEN),
    )
    made.end(embedding=matrix(VOCAB), norm=ones, head=matrix(VOCAB))
    return made


def logits(of: Any, rows: int, pages: Any = None) -> np.ndarray:
    """Of the last of `rows` rows, each the id of its position."""
    places, blocks = np.arange(rows), -(-rows // 16)
    found = np.empty((1, VOCAB), np.float32)
    of.run(
        ids=places,
        positions=places,
        slots=places,
        spans=np.array([[0, rows, rows]], np.int32),
        tables=np.arange(blocks, dtype=np.int32),
        table_offsets=np.array([0, blocks], np.int32),
        logit_rows=np.array([rows - 1]),
        pages=np.zeros((1, 2, 4, 1, 16, 16), np.float16) if pages is None else pages,
        logits=found,
    )
    return found


@pytest.mark.parametrize("threads", [0, -3])
def test_a_number_of_threads_that_is_none_is_refused(threads):
    with pytest.raises(ValueError, match=f"^{threads} threads, expected 1 or more"):
        decoder(threads)


def test_threads_that_the_machine_does_not_give_are_an_error_and_end_those_that_it_gave():
    def few() -> None:
        # Stacks of 8 MiB in 2 GiB: some hundred threads at most.
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    program = """
from firstlight.kernels.cpu import extension
make = extension.native().Decoder
shape = dict(heads=2, kv_heads=1, head_dim=16, hidden=32, intermediate=32, vocab=9)
known = dict(kernels=extension.instruction_sets()[0], rms_eps=1e-5, frequencies=[1.0] * 8)
for _ in range(3):
    try:
        make(threads=4096, **shape, **known)
    except ValueError as error:
        print(error)
make(threads=4, **shape, **known)
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, preexec_fn=few, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("4096 threads cannot be started, only ") == 3


def test_calls_from_several_threads_wait_for_each_other():
    shared, lengths = decoder(2), [1 + 7 * n % 60 for n in range(60)]
    expected = [logits(decoder(1), rows) for rows in lengths]
    for _ in range(10):
        with ThreadPoolExecutor(3) as callers:
            found = list(callers.map(lambda rows: logits(shared, rows), lengths))
        assert np.array_equal(found, expected)


def test_a_fork_that_has_none_of_the_threads_gets_an_error_and_does_not_wait_for_them():
    made = decoder(2)
    before = logits(made, 20)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            logits(made, 20)
        except RuntimeError as error:
            os._exit(7 if "of which this one is a fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert np.array_equal(logits(made, 20), before)


@pytest.mark.parametrize("form", [np.int16, np.uint16, ">f2"])
def test_pages_of_two_bytes_that_are_no_halves_are_refused(form):
    with pytest.raises(ValueError, match="pages are not halves"):
        logits(decoder(1), 3, np.zeros((1, 2, 4, 1, 16, 16), form))


@pytest.mark.parametrize(
    ("weight_format", "value"), [("q8", 1e8), ("q4", 1e8), ("bf16", 3.4e38), ("f32", None)]
)
def test_weights_beyond_what_a_format_holds_are_refused(weight_format, value):
    rows = np.zeros((20, 32), np.float32)
    rows[17, 3] = 3.4e38 if value is None else value
    make = extension.native().Matrix.from_floats
    if value is None:
        assert np.array_equal(make(weight_format, rows).unpacked(), rows)
        return
    with pytest.raises(ValueError, match=f"^output 17 has .* not finite as {weight_format}"):
        make(weight_format, rows)


@pytest.mark.parametrize(
    ("kind", "size", "scale"), [("Q8_0", 34, np.inf), ("Q4_0", 18, 6e4), ("Q4_1", 20, np.nan)]
)
def test_blocks_whose_scale_or_minimum_is_not_finite_are_refused(kind, size, scale):
    rows = np.zeros((20, size), np.uint8)
    rows[17, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    with pytest.raises(ValueError, match=r"^output 17 has weights that are not finite as q"):
        extension.native().Matrix.from_blocks(kind, rows, 32)
