//! Credentials of an HTTP client.

use std::path::PathBuf;

use rustls::{AlertDescription, CertificateError, Error as TlsError, InvalidMessage, OtherError};
use ureq::SendBody;
use ureq::config::ConfigBuilder;
use ureq::http::Request;
use ureq::http::header::AUTHORIZATION;
use ureq::middleware::MiddlewareNext;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

use crate::bearer_token::BearerToken;
use crate::files::{Authorities, CredentialsError, FileRole, KeyPair, KeyPairFiles, read_text};

/// Files with the credentials of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Bearer token that is sent with every request.
    pub token: Option<PathBuf>,
    /// Authorities of servers' certificates; none trusts the public ones.
    pub ca: Option<PathBuf>,
    /// The client's certificate, for servers that require one.
    pub pair: Option<KeyPairFiles>,
}

/// Credentials of a client. The default has no token and no certificate, and trusts the public authorities.
#[derive(Debug, Clone, Default)]
pub struct ClientCredentials {
    token: Option<BearerToken>,
    authorities: Option<Vec<Certificate<'static>>>,
    certificate: Option<ClientCert>,
}

impl ClientCredentials {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, or if the key does not match the certificate.
    pub fn load(files: &ClientFiles) -> Result<Self, CredentialsError> {
        let token = files.token.as_deref().map(|path| {
            let token = read_text(path).and_then(|text| Ok(text.parse::<BearerToken>()?));
            token.map_err(|cause| cause.of(FileRole::Token, path))
        });
        let authorities = files.ca.as_deref().map(Authorities::read).transpose()?;
        let pair = files.pair.as_ref().map(KeyPair::read).transpose()?;
        Ok(Self {
            token: token.transpose()?,
            authorities: authorities.map(|Authorities(list)| list.iter().map(|der| owned(der)).collect()),
            certificate: pair.as_ref().map(client_certificate),
        })
    }

    /// The same credentials with a token.
    #[must_use]
    pub fn with_token(self, token: BearerToken) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Adds the credentials to the configuration of a client.
    #[must_use]
    pub fn apply(&self, config: ConfigBuilder<AgentScope>) -> ConfigBuilder<AgentScope> {
        let roots = self.authorities.as_deref().map_or(RootCerts::WebPki, RootCerts::new_with_certs);
        let tls = TlsConfig::builder().root_certs(roots).client_cert(self.certificate.clone()).build();
        let token = self.token.clone();
        config.tls_config(tls).middleware(move |mut request: Request<SendBody<'_>>, next: MiddlewareNext<'_>| {
            if let Some(BearerToken(value)) = &token {
                request.headers_mut().insert(AUTHORIZATION, value.clone());
            }
            next.handle(request)
        })
    }
}

/// Advice for a request that failed because of TLS; none for another cause.
#[must_use]
pub fn tls_remedy(error: &ureq::Error) -> Option<&'static str> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref()?,
        _ => return None,
    };
    Some(match error {
        TlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "renew the server's certificate, or correct the clock of this host",
        TlsError::InvalidCertificate(CertificateError::Other(error)) if is_of_authority(error) => {
            "the server presents the certificate of an authority: let the authority issue one for the server"
        }
        TlsError::InvalidCertificate(_) => {
            "give the authority of the server's certificate, and a URL with a host that the certificate names"
        }
        TlsError::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::DecryptError,
        ) => "give a client certificate of an authority that the server trusts, and its key",
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not use TLS at this port: give an http:// URL"
        }
        _ => "check that client and server have a TLS version in common",
    })
}

/// Whether a server's certificate is the certificate of an authority. The type of this cause is not public.
fn is_of_authority(error: &OtherError) -> bool {
    error.to_string().contains("CaUsedAsEndEntity")
}

fn owned(der: &[u8]) -> Certificate<'static> {
    Certificate::from_der(der).to_owned()
}

fn client_certificate(pair: &KeyPair) -> ClientCert {
    let chain: Vec<_> = pair.chain.iter().map(|der| owned(der)).collect();
    let key = PrivateKey::from_pem(&pair.key_pem).expect("the pair was read from the same text");
    ClientCert::new_with_certs(&chain, key)
}

#[cfg(test)]
mod tests {
    use flash_indexer_test_support::Authority;

    use super::*;
    use crate::bearer_token::BearerTokenError;

    #[test]
    fn a_key_of_another_certificate_is_an_error_that_names_both_files() {
        let authority = Authority::new();
        let (first, second) = (authority.issue("first"), authority.issue("second"));
        let load = |key: PathBuf| {
            let pair = KeyPairFiles { certificate: first.certificate.clone(), key };
            ClientCredentials::load(&ClientFiles { pair: Some(pair), ..ClientFiles::default() })
        };
        assert!(load(first.key.clone()).is_ok());
        let error = load(second.key).expect_err("it is another key").to_string();
        assert!(error.contains("second.key") && error.contains("first.crt"), "{error}");
        let error = load(first.certificate.clone()).expect_err("it is no key").to_string();
        assert!(error.contains("it has no private key"), "{error}");
    }

    #[test]
    fn a_token_is_one_line_and_is_not_printed() {
        assert_eq!("  ".parse::<BearerToken>().expect_err("it is empty"), BearerTokenError);
        assert_eq!("a\nb".parse::<BearerToken>().expect_err("it is two lines"), BearerTokenError);
        let token: BearerToken = "secret\n".parse().expect("a token");
        assert!(!format!("{token:?}").contains("secret"), "{token:?}");
    }
}
