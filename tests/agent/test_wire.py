"""Frames: whatever pieces they arrive in, and whatever is no frame of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.agent import wire

FRAMES = st.one_of(
    st.builds(wire.message, st.dictionaries(st.text(), st.one_of(st.none(), st.integers(), st.text()), max_size=3)),
    st.builds(wire.data, st.integers(0, 0xFFFF), st.integers(0, 2**64 - 1), st.binary(max_size=40)),
    st.just(wire.beat()),
)


@given(st.lists(FRAMES, max_size=8), st.integers(1, 30))
def test_any_cut_gives_the_same_frames(frames: list[bytes], size: int) -> None:
    """As if each had arrived alone."""
    whole = [frame for one in frames for frame in wire.Decoder().feed(one)]
    decoder, stream = wire.Decoder(), b"".join(frames)
    pieces = [frame for start in range(0, len(stream), size) for frame in decoder.feed(stream[start : start + size])]
    assert pieces == whole and len(whole) == len(frames)


@given(st.integers(0, 0xFFFF), st.integers(0, 2**64 - 1), st.binary(max_size=40))
def test_data_says_its_stream_and_offset(stream: int, offset: int, chunk: bytes) -> None:
    """Whatever they are."""
    ((kind, payload),) = wire.Decoder().feed(wire.data(stream, offset, chunk))
    assert kind == wire.DATA and wire.split_data(payload) == (stream, offset, chunk)


@pytest.mark.parametrize("received", [b"Welcome to node7!\n", b"\0\0\0\0\x09", b"\xff\xff\xff\xff\x01"])
def test_what_is_no_frame_is_refused_at_once(received: bytes) -> None:
    """An unknown kind or an absurd length, before anything is gathered for it."""
    with pytest.raises(wire.ProtocolError, match="a frame of kind"):
        wire.Decoder().feed(received)


def test_a_data_frame_that_is_too_short_is_refused() -> None:
    """It has no room for stream and offset."""
    with pytest.raises(wire.ProtocolError, match="3 bytes"):
        wire.split_data(b"abc")


@given(st.binary(max_size=40))
def test_any_bytes_survive_as_a_word(word: bytes) -> None:
    """Through JSON and back."""
    assert wire.raw(wire.text(word)) == word
