//! Fuzz targets: see [`crate::fuzz`].

use std::fmt::Debug;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiVersionsRequest, DescribeClusterRequest, DescribeConfigsRequest, DescribeLogDirsRequest,
    DescribeQuorumRequest, ElectLeadersRequest, IncrementalAlterConfigsRequest, ListOffsetsRequest,
    MetadataRequest, UnregisterBrokerRequest,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request};

use super::bounded::Bounded;
use super::{Asked, FLEXIBLE_HEADER, MAX_RESPONSE_BYTES, calls, decode, next_frame};

/// The answer to each request this agent makes, in each version that it speaks. Input: which request, which
/// version, and a frame without its length that answers request 0.
pub fn answer(bytes: &[u8]) {
    let [kind, version, frame @ ..] = bytes else { return };
    let frame = Bytes::copy_from_slice(frame);
    match kind % 10 {
        0 => drop(read::<ApiVersionsRequest>(frame, *version)),
        1 => {
            if let Some(said) = read::<MetadataRequest>(frame, *version) {
                let partitions: usize = said.topics.iter().map(|topic| topic.partitions.len()).sum();
                assert_eq!(calls::metadata_seen(said).partitions.partitions.len(), partitions);
            }
        }
        2 => drop(read::<DescribeClusterRequest>(frame, *version)),
        3 => drop(read::<DescribeQuorumRequest>(frame, *version)),
        4 => drop(read::<ElectLeadersRequest>(frame, *version)),
        5 => drop(read::<DescribeLogDirsRequest>(frame, *version)),
        6 => drop(read::<DescribeConfigsRequest>(frame, *version)),
        8 => drop(read::<IncrementalAlterConfigsRequest>(frame, *version)),
        9 => drop(read::<ListOffsetsRequest>(frame, *version)),
        _ => drop(read::<UnregisterBrokerRequest>(frame, *version)),
    }
}

/// Reads an answer; one that is accepted is written and read again as the same.
fn read<R: Request>(frame: Bytes, version: u8) -> Option<R::Response>
where
    R::Response: Encodable + Debug + PartialEq,
{
    let spoken: Vec<i16> = (R::VERSIONS.min..=R::VERSIONS.max)
        .filter(|version| R::header_version(*version) >= FLEXIBLE_HEADER)
        .collect();
    let version = *spoken.get(usize::from(version) % spoken.len().max(1))?;
    assert!(R::Response::header_version(version) <= 1);
    let room = frame.len();
    let said = decode::<R>(frame, Asked { id: 0, version }).ok()?;
    let mut written = BytesMut::new();
    if said.encode(&mut written, version).is_ok() {
        // Tagged fields are written in another order than they came in. A large number that passed with much
        // behind it would be refused at the end: see `Bounded`.
        written.put_bytes(0, room);
        let again = R::Response::decode(&mut Bounded::new(written.freeze()), version);
        assert_eq!(again.ok().as_ref(), Some(&said), "version {version}");
    }
    Some(said)
}

/// A stream that comes in pieces has the frames that it has in one piece. Input: the size of the pieces, and
/// the stream.
pub fn frames(bytes: &[u8]) {
    let [size, stream @ ..] = bytes else { return };
    let pieces = frames_of(stream.chunks(usize::from(*size).max(1)));
    assert_eq!(pieces, frames_of(std::iter::once(stream)));
    let used: usize = pieces.0.iter().map(|frame| 4 + frame.len()).sum();
    assert!(used <= stream.len());
    assert!(pieces.0.iter().all(|frame| frame.len() <= MAX_RESPONSE_BYTES));
}

/// An offer of mechanisms has no more of them than there is room for.
pub fn offer(bytes: &[u8]) {
    let asked = Asked { id: 1, version: 1 };
    if let Some((_, offered)) = super::login::offered(asked, Bytes::copy_from_slice(bytes)) {
        assert!(offered.len() * size_of::<i16>() <= bytes.len());
    }
}

/// The frames up to the first that is none, and whether there was such a one.
fn frames_of<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Bytes>, bool) {
    let (mut inbox, mut frames) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        inbox.extend_from_slice(piece);
        loop {
            match next_frame(&mut inbox) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}
