//! Java's own store, JKS, as `keytool` made it up to Java 8: read here, because no well-kept crate does, and its
//! keys are hidden by a method of its own.

use ring::digest::{Context, Digest, SHA1_FOR_LEGACY_USE_ONLY};

use super::{Key, Store, Unreadable};

const MAGIC: u32 = 0xfeed_feed;
/// What every store is hashed with, besides its password.
const WHITENING: &[u8] = b"Mighty Aphrodite";
/// The object identifier of the method that hides keys, as it is encoded: 1.3.6.1.4.1.42.2.17.1.1.
const HIDES_KEYS: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x2a, 0x02, 0x11, 0x01, 0x01];
const KEY: u32 = 1;
const TRUSTED: u32 = 2;
/// From this version on each certificate says of what type it is.
const TYPED: u32 = 2;
const DIGEST: usize = 20;

/// Whether these are the bytes of such a store.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_be_bytes())
}

/// Reads a store with its password, and its first key with the key's own.
pub(crate) fn read(bytes: &[u8], password: &str, key_password: &str) -> Result<Store, Unreadable> {
    let (body, digest) = bytes.split_last_chunk::<DIGEST>().ok_or(Unreadable::Damaged)?;
    let mut whole = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    whole.update(&wide(password));
    whole.update(WHITENING);
    whole.update(body);
    if whole.finish().as_ref() != digest {
        return Err(Unreadable::Password);
    }
    entries(body, key_password)
}

/// Reads all but the hash at the end.
pub(crate) fn entries(body: &[u8], key_password: &str) -> Result<Store, Unreadable> {
    let mut rest = Reader(body);
    if rest.u32()? != MAGIC {
        return Err(Unreadable::Damaged);
    }
    let (version, count) = (rest.u32()?, rest.u32()?);
    let mut entries = Store::default();
    for _ in 0..count {
        let tag = rest.u32()?;
        let (_alias, _made) = (rest.short()?, rest.take(8)?);
        match tag {
            KEY => {
                let (hidden, length) = (rest.long()?, rest.u32()?);
                let chain: Vec<Vec<u8>> =
                    (0..length).map(|_| rest.certificate(version)).collect::<Result<_, _>>()?;
                if entries.key.is_none() {
                    entries.key = Some(Key { key: shown(hidden, key_password), chain });
                }
            }
            TRUSTED => entries.trusted.push(rest.certificate(version)?),
            _ => return Err(Unreadable::Damaged),
        }
    }
    Ok(entries)
}

/// The key that is hidden in an `EncryptedPrivateKeyInfo`: a random start, the key under a stream that begins
/// there, and a digest of the key and the password.
fn shown(hidden: &[u8], password: &str) -> Result<Vec<u8>, Unreadable> {
    let mut outer = Reader(Reader(hidden).der(0x30)?);
    let (method, octets) = (outer.der(0x30)?, outer.der(0x04)?);
    if Reader(method).der(0x06)? != HIDES_KEYS {
        return Err(Unreadable::Method);
    }
    let (start, rest) = octets.split_first_chunk::<DIGEST>().ok_or(Unreadable::Damaged)?;
    let (under, digest) = rest.split_last_chunk::<DIGEST>().ok_or(Unreadable::Damaged)?;
    let password = wide(password);
    let mut stream: Vec<u8> = start.to_vec();
    let mut key = Vec::with_capacity(under.len());
    for block in under.chunks(DIGEST) {
        stream = hash(&password, &stream).as_ref().to_vec();
        key.extend(block.iter().zip(&stream).map(|(byte, under)| byte ^ under));
    }
    if hash(&password, &key).as_ref() == digest { Ok(key) } else { Err(Unreadable::KeyPassword) }
}

fn hash(password: &[u8], bytes: &[u8]) -> Digest {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(password);
    context.update(bytes);
    context.finish()
}

/// As Java has a text in memory.
fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_be_bytes).collect()
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        let bytes = self.take(4)?.first_chunk::<4>().ok_or(Unreadable::Damaged)?;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// Bytes after their length in two bytes.
    fn short(&mut self) -> Result<&'a [u8], Unreadable> {
        let length = self.take(2)?.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
        self.take(length)
    }

    /// Bytes after their length in four.
    fn long(&mut self) -> Result<&'a [u8], Unreadable> {
        let length = usize::try_from(self.u32()?).map_err(|_| Unreadable::Damaged)?;
        self.take(length)
    }

    fn certificate(&mut self, version: u32) -> Result<Vec<u8>, Unreadable> {
        if version >= TYPED {
            self.short()?;
        }
        self.long().map(<[u8]>::to_vec)
    }

    /// The content of the DER element that comes next, if it has this tag.
    fn der(&mut self, tag: u8) -> Result<&'a [u8], Unreadable> {
        let [found, first] = *self.take(2)?.first_chunk::<2>().ok_or(Unreadable::Damaged)?;
        let length = match first {
            short @ 0..=0x7f => usize::from(short),
            // As many bytes as hold the length of anything that is in a file.
            long @ 0x81..=0x84 => self
                .take(usize::from(long & 0x7f))?
                .iter()
                .fold(0, |sum, byte| (sum << 8) | usize::from(*byte)),
            _ => return Err(Unreadable::Damaged),
        };
        if found == tag { self.take(length) } else { Err(Unreadable::Damaged) }
    }
}
