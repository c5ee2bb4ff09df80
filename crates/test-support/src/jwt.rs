//! Signing keys of an issuer of JSON web tokens.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

/// An RSA key for tests, of 2,048 bits in PKCS #8, made with `openssl genpkey -algorithm RSA` and `openssl pkcs8 -topk8 -nocrypt`.
/// `ring` cannot generate RSA keys.
const RSA_KEY: &[u8] = include_bytes!("../data/jwt_rsa_key.der");

/// A signing key of an issuer. All keys except the RSA key are newly generated.
pub struct JwtSigningKey {
    id: String,
    pair: Pair,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl JwtSigningKey {
    /// The RSA key, under an id.
    #[must_use]
    pub fn rsa(id: &str) -> Self {
        let pair = RsaKeyPair::from_pkcs8(RSA_KEY).expect("a key");
        Self { id: id.to_owned(), pair: Pair::Rsa(Box::new(pair)) }
    }

    /// A new P-256 key.
    #[must_use]
    pub fn p256(id: &str) -> Self {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).expect("a key");
        Self { id: id.to_owned(), pair: Pair::P256(pair) }
    }

    /// A new Ed25519 key.
    #[must_use]
    pub fn ed25519(id: &str) -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Self { id: id.to_owned(), pair: Pair::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).expect("a key")) }
    }

    /// Name of the key's algorithm.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// Bytes of the public key: the modulus, the point or the key.
    #[must_use]
    pub fn public_key(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(pair) => PublicKeyComponents::<Vec<u8>>::from(pair.public()).n,
            Pair::P256(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    /// The key's entry in a key set.
    #[must_use]
    pub fn jwk(&self) -> Value {
        let (id, public) = (&self.id, self.public_key());
        match &self.pair {
            Pair::Rsa(pair) => {
                let exponent = PublicKeyComponents::<Vec<u8>>::from(pair.public()).e;
                json!({ "kty": "RSA", "kid": id, "use": "sig", "alg": "RS256", "n": encoded(&public), "e": encoded(&exponent) })
            }
            Pair::P256(_) => {
                let (x, y) = public[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "kid": id, "x": encoded(x), "y": encoded(y) })
            }
            Pair::Ed25519(_) => json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": encoded(&public) }),
        }
    }

    /// A token with these claims.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({ "alg": self.algorithm(), "typ": "JWT", "kid": self.id }), claims)
    }

    /// A token with this header, which may differ from the key's.
    #[must_use]
    pub fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = unsigned_jwt(header, claims);
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).expect("a signature");
                signature
            }
            Pair::P256(pair) => pair.sign(&random, message.as_bytes()).expect("a signature").as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", encoded(&signature))
    }
}

/// Header and claims of a token, without a signature.
#[must_use]
pub fn unsigned_jwt(header: &Value, claims: &Value) -> String {
    format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()))
}

/// A token that is authenticated by a secret (`HS256`).
#[must_use]
pub fn jwt_with_secret(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let message = unsigned_jwt(header, claims);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    format!("{message}.{}", encoded(ring::hmac::sign(&key, message.as_bytes()).as_ref()))
}

/// The key set of these keys.
#[must_use]
pub fn jwt_key_set(keys: &[&JwtSigningKey]) -> String {
    json!({ "keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>() }).to_string()
}

fn encoded(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
