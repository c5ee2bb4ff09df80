//! Keys in Z85, and certificates with a key pair.

use std::fmt;
use std::str::FromStr;

const KEY_BYTES: usize = 32;
/// Length of a key in Z85.
const KEY_CHARS: usize = 40;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub(crate) [u8; KEY_BYTES]);

/// The key pair of a server or a client. `Debug` shows the public key alone.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    public: PublicKey,
    secret: [u8; KEY_BYTES],
}

/// Text without the expected key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is not a key. It is not repeated: it may be a secret.
    #[error("a key is not {KEY_CHARS} characters of Z85; make keys with `flash-indexer curve-key`")]
    NotAKey,
    /// A certificate lacks a key.
    #[error("it has no line {0} = \"KEY\"; make one with `flash-indexer curve-key`")]
    Missing(&'static str),
    /// The library has no CURVE, or no random bytes.
    #[error("failed to make a key pair: {0}")]
    Generate(zmq::Error),
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        key_bytes(text).map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&z85(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("public", &self.public).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// A new pair of random keys.
    ///
    /// # Errors
    ///
    /// When libzmq was built without CURVE.
    pub fn generate() -> Result<Self, KeyError> {
        let zmq::CurveKeyPair { public_key, secret_key } = zmq::CurveKeyPair::new().map_err(KeyError::Generate)?;
        Ok(Self { public: PublicKey(public_key), secret: secret_key })
    }

    /// Reads a certificate with both keys, in the format of libzmq's other bindings.
    ///
    /// # Errors
    ///
    /// When a key is missing or malformed.
    pub fn parse(certificate: &str) -> Result<Self, KeyError> {
        let public = PublicKey(key_bytes(value(certificate, "public-key")?)?);
        Ok(Self { public, secret: key_bytes(value(certificate, "secret-key")?)? })
    }

    /// The public key.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) const fn secret(&self) -> &[u8; KEY_BYTES] {
        &self.secret
    }

    /// The certificate with both keys.
    #[must_use]
    pub fn secret_certificate(&self) -> String {
        let (public, secret) = (self.public, z85(&self.secret));
        format!("metadata\ncurve\n    public-key = \"{public}\"\n    secret-key = \"{secret}\"\n")
    }

    /// The certificate with the public key alone.
    #[must_use]
    pub fn public_certificate(&self) -> String {
        format!("metadata\ncurve\n    public-key = \"{}\"\n", self.public)
    }
}

/// The value of a line `name = "value"`.
fn value<'t>(certificate: &'t str, name: &'static str) -> Result<&'t str, KeyError> {
    let found = certificate.lines().find_map(|line| {
        let value = line.trim().strip_prefix(name)?.trim_start().strip_prefix('=')?.trim();
        value.strip_prefix('"')?.strip_suffix('"')
    });
    found.ok_or(KeyError::Missing(name))
}

fn key_bytes(text: &str) -> Result<[u8; KEY_BYTES], KeyError> {
    if text.len() != KEY_CHARS || !text.is_ascii() {
        return Err(KeyError::NotAKey);
    }
    let mut key = [0; KEY_BYTES];
    // The decoder of libzmq accepts characters and numbers that are not Z85.
    for (word, digits) in key.chunks_exact_mut(4).zip(text.as_bytes().chunks_exact(5)) {
        let number = digits.iter().try_fold(0_u64, |number, digit| {
            let value = Z85.iter().position(|known| known == digit)?;
            Some(number * Z85.len() as u64 + value as u64)
        });
        let number = number.and_then(|number| u32::try_from(number).ok()).ok_or(KeyError::NotAKey)?;
        word.copy_from_slice(&number.to_be_bytes());
    }
    Ok(key)
}

/// Digits of Z85 (RFC 32 of ZeroMQ), in order of their values.
const Z85: &[u8; 85] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

fn z85(key: &[u8; KEY_BYTES]) -> String {
    zmq::z85_encode(key).expect("the length of a key is a multiple of four")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As pyzmq writes it.
    const CERTIFICATE: &str = "#   ****  Generated on 2026-11-25 by pyzmq  ****\n#   ZeroMQ CURVE **Secret** Certificate\n\
                               #   DO NOT PROVIDE THIS FILE TO OTHER USERS nor change its permissions.\n\nmetadata\ncurve\n    \
                               public-key = \"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\"\n    \
                               secret-key = \"D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\"\n";

    #[test]
    fn a_certificate_of_another_binding_is_read() {
        let pair = KeyPair::parse(CERTIFICATE).expect("a pair");
        assert_eq!(pair.public().to_string(), "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7");
        assert_eq!(KeyPair::parse(&pair.secret_certificate()).as_ref(), Ok(&pair));
        assert_eq!(KeyPair::parse(&pair.public_certificate()), Err(KeyError::Missing("secret-key")));
    }

    #[test]
    fn errors_and_debug_output_have_no_secret() {
        let pair = KeyPair::generate().expect("CURVE");
        let certificate = pair.secret_certificate();
        let secret = value(&certificate, "secret-key").expect("a secret");
        assert!(!format!("{pair:?}").contains(secret));
        let damaged = certificate.replace(secret, &format!("{}~", &secret[1..]));
        let error = KeyPair::parse(&damaged).expect_err("no key");
        assert_eq!(error, KeyError::NotAKey);
        assert!(!format!("{error} {error:?}").contains(&secret[1..]));
    }

    #[test]
    fn a_key_has_40_characters_of_z85() {
        let key = KeyPair::generate().expect("CURVE").public().to_string();
        assert!(key.parse::<PublicKey>().is_ok());
        for wrong in ["", &key[1..], &format!("{key}0"), &format!("{}\"", &key[1..]), &"%".repeat(40), &"é".repeat(20)]
        {
            assert_eq!(wrong.parse::<PublicKey>(), Err(KeyError::NotAKey), "{wrong}");
        }
    }
}
