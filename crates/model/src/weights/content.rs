//! What a file is by its first bytes, so that a wrong one is refused by what it is.

/// Bytes that are looked at.
pub(super) const START: u64 = 512;

/// A kind of content.
#[derive(Debug, PartialEq)]
pub(super) enum Content {
    /// Or nothing that is known: its reader says what is wrong.
    Safetensors,
    Zip,
    /// Something else, with what to do.
    Other(String),
}

/// Tells the content of a file by its start.
pub(super) fn recognise(start: &[u8]) -> Content {
    let other = |message: &str| Content::Other(message.to_owned());
    // A JSON header after its length: asked for first, because lengths may look like anything.
    if start.get(8) == Some(&b'{') && start[4..8] == [0; 4] {
        return Content::Safetensors;
    }
    if start.is_empty() {
        return other("it is empty (0 bytes)");
    }
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        return Content::Zip;
    }
    let old = |what: &str| {
        Content::Other(format!(
            "{what}, as PyTorch wrote before 1.6\n  hint: re-save it with a current PyTorch: \
             torch.save(torch.load(f, map_location='cpu', weights_only=False), f); that runs what the file says, so only do \
             it with a file that you trust"
        ))
    };
    // Protocol and first opcodes: a long integer (the old magic number), or an object.
    if matches!(start, [0x80, 0..=5, next, ..] if !next.is_ascii_digit()) && start.get(4..8) != Some(&[0; 4]) {
        return old("it is a bare pickle");
    }
    if start.get(257..262) == Some(b"ustar") {
        return old("it is a tar archive");
    }
    let text = start.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(start).trim_ascii_start();
    let word = |word: &[u8]| text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word));
    if word(b"<!doctype") || word(b"<html") || word(b"<?xml") || word(b"<head") {
        return other(
            "it is a web page (HTML), not the file that was to be fetched\n  hint: open it to see what the server said",
        );
    }
    if word(b"version https://git-lfs") {
        return other("it is a Git LFS pointer, not the file itself\n  hint: run `git lfs pull` in its repository");
    }
    if start.starts_with(b"\x1F\x8B") {
        return other("it is a gzip archive\n  hint: unpack it first");
    }
    if start.starts_with(b"\x89HDF\r\n") {
        return other("it is an HDF5 file, as Keras writes them");
    }
    if start.len() >= 8 && start.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return other("it is a text file");
    }
    Content::Safetensors
}

#[cfg(test)]
mod tests {
    use super::{Content, recognise};

    #[test]
    fn a_header_whose_length_looks_like_a_pickle_is_a_header() {
        // 640 bytes: 80 02 in little-endian.
        assert_eq!(recognise(b"\x80\x02\0\0\0\0\0\0{\"a\":"), Content::Safetensors);
        assert!(matches!(recognise(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."), Content::Other(_)));
    }
}
