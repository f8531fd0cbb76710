//! Encoding of call arguments: postcard, bounded on both sides.

use serde::{Serialize, de::DeserializeOwned};

use crate::limit::MAX_ARGS;
use crate::status::Status;

/// Encodes arguments or a reply.
///
/// # Errors
/// [`Status::RANGE`] where the encoding is longer than [`MAX_ARGS`].
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Status> {
    let bytes = postcard::to_stdvec(value).map_err(|_| Status::INVAL)?;
    if bytes.len() > MAX_ARGS { Err(Status::RANGE) } else { Ok(bytes) }
}

/// Decodes arguments or a reply. Bytes left over are an error: the peer meant something else.
///
/// # Errors
/// [`Status::MALFORMED`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Status> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Status::MALFORMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_bytes_are_malformed() {
        let mut bytes = encode(&(1u32, "x")).unwrap();
        assert_eq!(decode::<(u32, String)>(&bytes), Ok((1, "x".into())));
        bytes.push(0);
        assert_eq!(decode::<(u32, String)>(&bytes), Err(Status::MALFORMED));
    }
}
