//! New tokens.

use crate::grant::Scope;
use crate::tokens::{digest_of, hex};

/// Random bytes of a token.
const SECRET_BYTES: usize = 32;
/// Prefix of tokens, by which scanners for leaked secrets recognise them.
const PREFIX: &str = "fidx_";

/// A new random token. It is not printed by `Debug`.
pub struct NewToken {
    secret: String,
}

impl NewToken {
    /// Generates a token of 256 random bits.
    ///
    /// # Errors
    ///
    /// Fails if the operating system provides no random bytes.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self { secret: format!("{PREFIX}{}", hex(&bytes)) })
    }

    /// The token, as clients send it.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The token's entry for the token file. No tenants permit all.
    #[must_use]
    pub fn entry(&self, name: &str, scopes: &[Scope], tenants: &[String]) -> String {
        let list = |texts: Vec<&str>| serde_json::Value::from(texts).to_string();
        let scopes = list(scopes.iter().map(|scope| scope.as_str()).collect());
        let tenants = match tenants {
            [] => String::new(),
            tenants => format!("tenants = {}\n", list(tenants.iter().map(String::as_str).collect())),
        };
        // Strings of JSON are strings of TOML.
        let (name, digest) = (serde_json::Value::from(name), hex(&digest_of(&self.secret)));
        format!("[[token]]\nname = {name}\nsha256 = \"{digest}\"\nscopes = {scopes}\n{tenants}")
    }
}

impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").finish_non_exhaustive()
    }
}
