//! Bytes from the wire that cannot make the decoder reserve absurd amounts of memory.

use std::ops::Range;

use bytes::{Buf, Bytes, TryGetError};
use kafka_protocol::protocol::buf::ByteBuf;

/// One response. Refuses length prefixes that cannot be true.
///
/// The generated decoders reserve memory for as many elements as a prefix claims before they look at the
/// first one: five bytes of nonsense ask for a hundred gigabytes, and an allocation that fails ends the
/// process. In the flexible encoding every length is an unsigned varint, read byte by byte, so it is checked
/// here as it passes: no honest length exceeds the bytes that are left.
///
/// Not everything that passes is a length. Booleans are read by the same call: one with its high bit set
/// counts as the begin of the next varint, which then only looks larger than it is. Numbers of tagged fields
/// are varints too, and may well exceed the bytes that are left: see [`HARMLESS`]. Beyond that the check errs
/// on the side of refusing.
#[derive(Debug)]
pub(super) struct Bounded {
    bytes: Bytes,
    /// The varint being read, and how many bytes of it.
    value: usize,
    read: u32,
}

/// Four bytes carry 2^28, more than [`super::MAX_RESPONSE_BYTES`].
const LONGEST_VARINT: u32 = 4;
/// No room worth a refusal is reserved for so many elements, and Kafka counts its tagged fields from 0.
const HARMLESS: usize = 255;

impl Bounded {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self { bytes, value: 0, read: 0 }
    }
}

impl Buf for Bounded {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    fn try_get_u8(&mut self) -> Result<u8, TryGetError> {
        let byte = self.bytes.try_get_u8()?;
        self.value |= usize::from(byte & 0x7f) << (7 * self.read);
        self.read += 1;
        let more = byte & 0x80 != 0;
        // Compact arrays and strings are one longer than they are, to leave 0 for null.
        let available = self.bytes.remaining() + 1;
        if (more && self.read == LONGEST_VARINT) || (!more && self.value > available.max(HARMLESS)) {
            return Err(TryGetError { requested: self.value, available });
        }
        if !more {
            (self.value, self.read) = (0, 0);
        }
        Ok(byte)
    }
}

impl ByteBuf for Bounded {
    fn peek_bytes(&mut self, range: Range<usize>) -> Bytes {
        self.bytes.slice(range)
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        self.bytes.split_to(size)
    }
}
