//! Boundaries of the messages in a gRPC request's body.

use axum::body::Bytes;

use flash_indexer_admission::LARGE_BYTES;

/// Bytes of a message beyond which it is long: the buffer in which tonic gathers it is not kept for later messages. tonic
/// starts with a buffer of half this size.
pub(crate) const LONG_BYTES: usize = 16 << 10;

/// Bytes before a message: whether it is compressed, and its length.
const HEADER_BYTES: usize = 5;

/// Reader of the boundaries of messages.
#[derive(Debug)]
pub(crate) enum MessageReader {
    Header {
        bytes: [u8; HEADER_BYTES],
        filled: usize,
    },
    /// `content` has the bytes taken so far of a compressed message that may be small.
    Message {
        received: usize,
        length: usize,
        is_compressed: bool,
        content: Vec<u8>,
    },
}

/// Consecutive bytes of a body, and the messages that end in them.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) bytes: Bytes,
    pub(crate) has_ended_message: bool,
    /// Whether one message ends in the part, at its end, and is long. A compressed message is long and large, regardless of its
    /// length: the length of its content is not known here.
    pub(crate) ends_long: bool,
    /// Whether that message is answered on the threads for large requests, unless its content is small.
    pub(crate) ends_large: bool,
    /// That message, if it is compressed and its content may be small.
    pub(crate) compressed: Option<Vec<u8>>,
}

impl Default for MessageReader {
    fn default() -> Self {
        Self::Header { bytes: [0; HEADER_BYTES], filled: 0 }
    }
}

impl MessageReader {
    /// Bytes of the current message that were taken, with its header; none between messages.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        match self {
            Self::Header { filled, .. } => *filled,
            Self::Message { received, .. } => HEADER_BYTES + received,
        }
    }

    /// Takes bytes up to the end of a long message, or up to the position where a long message follows others.
    pub(crate) fn next_part(&mut self, received: &mut Bytes) -> Part {
        let (mut end, mut has_ended_message) = (0, false);
        let (mut ends_long, mut ends_large, mut compressed) = (false, false, None);
        while end < received.len() {
            match self {
                Self::Header { bytes, filled } => {
                    let taken = (HEADER_BYTES - *filled).min(received.len() - end);
                    bytes[*filled..*filled + taken].copy_from_slice(&received[end..end + taken]);
                    *filled += taken;
                    end += taken;
                    if *filled < HEADER_BYTES {
                        break;
                    }
                    let [compressed, length @ ..] = *bytes;
                    let (length, is_compressed) = (u32::from_be_bytes(length) as usize, compressed != 0);
                    *self = Self::Message { received: 0, length, is_compressed, content: Vec::new() };
                    if length > 0 && has_ended_message && (is_compressed || length > LONG_BYTES) {
                        break;
                    }
                }
                Self::Message { received: before, length, is_compressed, content } => {
                    let taken = (*length - *before).min(received.len() - end);
                    if *is_compressed && *length <= LARGE_BYTES {
                        content.extend_from_slice(&received[end..end + taken]);
                    }
                    *before += taken;
                    end += taken;
                }
            }
            if let Self::Message { received, length, is_compressed, ref mut content } = *self
                && received == length
            {
                let content = std::mem::take(content);
                *self = Self::default();
                has_ended_message = true;
                let is_compressed = is_compressed && length > 0;
                ends_long = is_compressed || length > LONG_BYTES;
                ends_large = is_compressed || length > LARGE_BYTES;
                compressed = (is_compressed && length <= LARGE_BYTES).then_some(content);
                if ends_long {
                    break;
                }
            }
        }
        Part { bytes: received.split_to(end), has_ended_message, ends_long, ends_large, compressed }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message of a stream: whether it is compressed, and its length.
    fn message() -> impl Strategy<Value = (bool, usize)> {
        let long = vec![LONG_BYTES, LONG_BYTES + 1, LARGE_BYTES, LARGE_BYTES + 1];
        let length = prop_oneof![4 => 0..20_usize, 2 => prop::sample::select(long)];
        (prop::bool::weighted(0.2), length)
    }

    proptest! {
        #[test]
        fn a_long_message_ends_alone_at_the_end_of_a_part(
            messages in prop::collection::vec(message(), 0..6),
            chunk_bytes in prop_oneof![1..40_usize, Just(1 << 14), Just(usize::MAX)],
        ) {
            let mut stream = Vec::new();
            // Ends of messages, and whether they are long and large.
            let mut ends = Vec::new();
            for &(is_compressed, length) in &messages {
                stream.push(u8::from(is_compressed));
                stream.extend((length as u32).to_be_bytes());
                stream.extend(std::iter::repeat_n(7, length));
                let is_compressed = is_compressed && length > 0;
                let (is_long, is_large) = (is_compressed || length > LONG_BYTES, is_compressed || length > LARGE_BYTES);
                ends.push((stream.len(), is_long, is_large, length));
            }
            let (mut reader, mut position) = (MessageReader::default(), 0);
            for chunk in stream.chunks(chunk_bytes.min(stream.len().max(1))) {
                let mut received = Bytes::copy_from_slice(chunk);
                while !received.is_empty() {
                    let part = reader.next_part(&mut received);
                    let end = position + part.bytes.len();
                    prop_assert!(end > position);
                    prop_assert_eq!(&part.bytes[..], &stream[position..end]);
                    let ended: Vec<_> = ends.iter().filter(|(at, ..)| (position + 1..=end).contains(at)).collect();
                    prop_assert_eq!(part.has_ended_message, !ended.is_empty());
                    prop_assert_eq!(part.ends_long, ended.iter().any(|(_, is_long, ..)| *is_long));
                    prop_assert_eq!(part.ends_large, ended.iter().any(|(_, _, is_large, _)| *is_large));
                    prop_assert!(!part.ends_long || ended.len() == 1 && ended[0].0 == end);
                    let may_be_small = ended.len() == 1 && stream[ended[0].0 - ended[0].3 - 5] == 1 && ended[0].3 > 0;
                    let message = || stream[end - ended[0].3..end].to_vec();
                    let expected = (may_be_small && ended[0].3 <= LARGE_BYTES).then(message);
                    prop_assert_eq!(part.compressed, expected);
                    let last_end = ends.iter().map(|(at, ..)| *at).filter(|at| *at <= end).max().unwrap_or(0);
                    prop_assert_eq!(reader.unfinished_bytes(), end - last_end);
                    position = end;
                }
            }
            prop_assert_eq!(position, stream.len());
        }
    }
}
