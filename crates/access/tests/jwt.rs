//! JSON web tokens: accepted tokens, and each reason for a refusal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use flash_indexer_access::{
    AccessError, FileContent, Grant, JWT_BYTES_MAX, JWT_KEYS_MAX, JWT_LEEWAY_S, JwtAlgorithm, JwtError, JwtKeyFile,
    JwtKeys, JwtOptions, JwtVerifier, Scope,
};
use flash_indexer_test_support::{JwtSigningKey, jwt_key_set, jwt_with_secret, unsigned_jwt};
use serde_json::{Value, json};
use tempfile::TempDir;

const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "flash-indexer";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Claims of an acceptable token, and others in place of some of them. Null leaves a claim out.
fn claims(others: &Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": "router", "exp": now() + 600, "scope": "openid query", "tenants": ["a"]
    });
    for (name, value) in others.as_object().expect("an object") {
        let all = claims.as_object_mut().expect("an object");
        if value.is_null() {
            all.remove(name)
        } else {
            all.insert(name.clone(), value.clone())
        };
    }
    claims
}

fn options() -> JwtOptions {
    JwtOptions {
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        algorithms: JwtAlgorithm::ALL.to_vec(),
        scopes_claim: "scope".parse().expect("a name"),
        tenants_claim: Some("tenants".parse().expect("a name")),
    }
}

/// A verifier with keys in a file.
struct Fixture {
    _folder: TempDir,
    path: PathBuf,
    file: Arc<JwtKeyFile>,
    verifier: JwtVerifier,
}

impl Fixture {
    fn new(keys: &[&JwtSigningKey]) -> Self {
        Self::with(keys, options())
    }

    fn with(keys: &[&JwtSigningKey], options: JwtOptions) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("jwks.json");
        std::fs::write(&path, jwt_key_set(keys)).expect("a file");
        let file = Arc::new(JwtKeyFile::load(&path).expect("keys"));
        Self { _folder: folder, path, verifier: JwtVerifier::new(Arc::clone(&file), options), file }
    }

    fn grant(&self, token: &str) -> Arc<Grant> {
        self.verifier.grant(token).expect("an acceptable token")
    }

    /// The reason why a token is refused. Its message has no part of the token.
    fn refusal(&self, token: &str) -> JwtError {
        let error = self.verifier.grant(token).expect_err("it is refused");
        let message = format!("{error} {error:?}");
        for part in token.split('.').filter(|part| part.len() > 8) {
            assert!(!message.contains(part), "{message}");
        }
        assert!(AccessError::from(error.clone()).is_unauthenticated(), "{message}");
        error
    }
}

#[test]
fn each_algorithm_is_verified_with_its_key() {
    let keys = [JwtSigningKey::rsa("r"), JwtSigningKey::p256("p"), JwtSigningKey::ed25519("e")];
    let fixture = Fixture::new(&keys.each_ref());
    assert_eq!(fixture.file.key_count(), 3);
    for key in &keys {
        let grant = fixture.grant(&key.sign(&claims(&json!({}))));
        assert_eq!(grant.name(), "router");
        assert!(grant.check(Scope::Query).is_ok() && grant.check_tenant("a").is_ok(), "{}", key.algorithm());
        let missing = grant.check(Scope::Admin).expect_err("it lacks the scope");
        assert!(missing.to_string().contains("lacks the scope `admin`; have the issuer add it"), "{missing}");
        assert!(!missing.is_unauthenticated());
        let tenant = grant.check_tenant("b").expect_err("it is another tenant");
        assert!(tenant.to_string().contains("--jwt-tenants-claim"), "{tenant}");
        assert!(grant.check_all_tenants().is_err());

        let (message, signature) = key
            .sign(&claims(&json!({})))
            .rsplit_once('.')
            .map(|(m, s)| (m.to_owned(), s.to_owned()))
            .expect("a signature");
        let others = unsigned_jwt(
            &json!({ "alg": key.algorithm(), "kid": key.jwk()["kid"] }),
            &claims(&json!({ "scope": "admin" })),
        );
        assert_eq!(fixture.refusal(&format!("{others}.{signature}")), JwtError::Signature);
        assert_eq!(fixture.refusal(&format!("{message}.")), JwtError::Signature);
    }
}

#[test]
fn claims_become_scopes_and_tenants() {
    let key = JwtSigningKey::ed25519("e");
    let roles =
        JwtOptions { scopes_claim: "/realm_access/roles".parse().expect("a name"), tenants_claim: None, ..options() };
    let fixture = Fixture::with(&[&key], roles);
    let grant = fixture.grant(&key.sign(&claims(&json!({ "realm_access": { "roles": ["events", "offline"] } }))));
    assert!(grant.check(Scope::Events).is_ok() && grant.check(Scope::Query).is_err());
    assert!(grant.check_all_tenants().is_ok(), "no claim of tenants is configured");

    let fixture = Fixture::new(&[&key]);
    let grant = |others: Value| fixture.grant(&key.sign(&claims(&others)));
    assert!(grant(json!({ "tenants": "*" })).check_all_tenants().is_ok());
    assert!(grant(json!({ "tenants": null })).check_tenant("default").is_err());
    assert!(grant(json!({ "scope": null })).check(Scope::Query).is_err());
    let unnamed = grant(json!({ "sub": null })).check(Scope::Admin).expect_err("it lacks the scope").to_string();
    assert!(
        unnamed.starts_with("the JWT, which has no claim `sub` to name it by, lacks the scope `admin`"),
        "{unnamed}"
    );
    assert!(grant(json!({ "aud": ["other", AUDIENCE] })).check(Scope::Query).is_ok());
}

#[test]
fn a_token_counts_from_its_nbf_until_its_exp_with_a_leeway() {
    let key = JwtSigningKey::p256("p");
    let fixture = Fixture::new(&[&key]);
    let token = |others: Value| key.sign(&claims(&others));
    let half = JWT_LEEWAY_S / 2;
    assert!(fixture.verifier.grant(&token(json!({ "exp": now() - half, "nbf": now() + half }))).is_ok());
    let expired = fixture.refusal(&token(json!({ "exp": now() - JWT_LEEWAY_S - 30 })));
    assert_eq!((&expired, AccessError::from(expired.clone()).as_str()), (&JwtError::Expired, "jwt_expired"));
    assert!(expired.to_string().starts_with("token expired"), "{expired}");
    assert_eq!(fixture.refusal(&token(json!({ "nbf": now() + JWT_LEEWAY_S + 30 }))), JwtError::NotYetValid);
    for exp in [Value::Null, json!("tomorrow"), json!(-1)] {
        assert_eq!(
            fixture.refusal(&token(json!({ "exp": exp }))),
            JwtError::Claim { claim: "exp".to_owned() },
            "{exp}"
        );
    }
    assert_eq!(fixture.refusal(&token(json!({ "exp": [now() + 600] }))), JwtError::Malformed);
    assert_eq!(fixture.refusal(&token(json!({ "nbf": "soon" }))), JwtError::Claim { claim: "nbf".to_owned() });
}

#[test]
fn a_token_of_another_issuer_or_for_another_audience_is_refused() {
    let key = JwtSigningKey::p256("p");
    let fixture = Fixture::new(&[&key]);
    let refusal = |others: Value| fixture.refusal(&key.sign(&claims(&others)));
    assert_eq!(refusal(json!({ "iss": "https://other.example" })), JwtError::Issuer);
    assert_eq!(refusal(json!({ "aud": "other" })), JwtError::Audience);
    assert_eq!(refusal(json!({ "aud": ["other", "flash-indexer-2"] })), JwtError::Audience);
    for name in ["iss", "aud"] {
        assert_eq!(refusal(json!({ name: null })), JwtError::Claim { claim: name.to_owned() });
        assert_eq!(refusal(json!({ name: { "a": 1 } })), JwtError::Claim { claim: name.to_owned() });
    }
}

#[test]
fn a_signature_of_another_key_is_refused() {
    for (own, other) in [
        (JwtSigningKey::p256("k"), JwtSigningKey::p256("k")),
        (JwtSigningKey::ed25519("k"), JwtSigningKey::ed25519("k")),
    ] {
        let fixture = Fixture::new(&[&own]);
        assert_eq!(fixture.refusal(&other.sign(&claims(&json!({})))), JwtError::Signature);
    }
}

#[test]
fn the_algorithm_is_one_of_the_key_and_no_secret_counts() {
    let keys = [JwtSigningKey::rsa("r"), JwtSigningKey::p256("p"), JwtSigningKey::ed25519("e")];
    let fixture = Fixture::new(&keys.each_ref());
    let is_algorithm = |token: &str| matches!(fixture.refusal(token), JwtError::Algorithm { .. });
    for key in &keys {
        let id = &key.jwk()["kid"];
        for none in ["none", "None", "NONE", ""] {
            let unsigned = unsigned_jwt(&json!({ "alg": none, "kid": id }), &claims(&json!({})));
            assert!(is_algorithm(&format!("{unsigned}.")), "{none}");
        }
        // The public key as a secret, for algorithms that an attacker may choose.
        for algorithm in ["HS256", "RS256", "ES256", "EdDSA"] {
            let header = json!({ "alg": algorithm, "kid": id });
            let token = jwt_with_secret(&header, &claims(&json!({})), &key.public_key());
            match algorithm == key.algorithm() {
                true => assert_eq!(fixture.refusal(&token), JwtError::Signature, "{algorithm}"),
                false => assert!(is_algorithm(&token), "{algorithm}"),
            }
        }
        for other in
            ["RS256", "ES256", "EdDSA", "RS512", "PS256", "ES384"].into_iter().filter(|it| *it != key.algorithm())
        {
            assert!(is_algorithm(&key.sign_with(&json!({ "alg": other, "kid": id }), &claims(&json!({})))), "{other}");
        }
    }
    let only = JwtOptions { algorithms: vec![JwtAlgorithm::Es256], ..options() };
    let fixture = Fixture::with(&keys.each_ref(), only);
    assert!(fixture.verifier.grant(&keys[1].sign(&claims(&json!({})))).is_ok());
    let refused = fixture.refusal(&keys[0].sign(&claims(&json!({}))));
    assert_eq!(refused, JwtError::Algorithm { algorithm: "RS256".to_owned() });
}

#[test]
fn the_key_is_one_of_the_set_whatever_the_header_brings() {
    let (own, other) = (JwtSigningKey::p256("own"), JwtSigningKey::p256("other"));
    let fixture = Fixture::new(&[&own]);
    let unknown = fixture.refusal(&other.sign(&claims(&json!({}))));
    assert_eq!(unknown, JwtError::UnknownKey { id: "other".to_owned() });
    assert!(unknown.to_string().starts_with("unknown key id \"other\""), "{unknown}");
    let header = |more: Value| {
        let mut header = json!({ "alg": "ES256" });
        header.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        header
    };
    assert_eq!(fixture.refusal(&own.sign_with(&header(json!({})), &claims(&json!({})))), JwtError::NoKeyId);
    let brought = header(json!({ "kid": "own", "jwk": other.jwk(), "jku": "https://other.example/jwks" }));
    assert_eq!(fixture.refusal(&other.sign_with(&brought, &claims(&json!({})))), JwtError::Signature);
    let critical = header(json!({ "kid": "own", "crit": ["b64"], "b64": false }));
    assert_eq!(fixture.refusal(&own.sign_with(&critical, &claims(&json!({})))), JwtError::Critical);
    let long = header(json!({ "kid": "k".repeat(2_000) }));
    assert!(fixture.refusal(&own.sign_with(&long, &claims(&json!({})))).to_string().len() < 1_200);
}

#[test]
fn a_text_of_another_form_is_refused() {
    let key = JwtSigningKey::p256("p");
    let fixture = Fixture::new(&[&key]);
    let token = key.sign(&claims(&json!({})));
    let parts: Vec<_> = token.split('.').collect();
    for text in [
        "",
        "secret",
        "..",
        ".",
        "a.b.c",
        "é.é.é",
        &token[1..],
        &format!("{token}."),
        &format!("{token}.x"),
        parts[0],
        &format!("{}.{}", parts[0], parts[1]),
        &format!("{}..{}", parts[0], parts[2]),
        &format!("{}=.{}.{}", parts[0], parts[1], parts[2]),
    ] {
        let refused = fixture.refusal(text);
        assert!(matches!(refused, JwtError::Malformed | JwtError::Signature), "{text}: {refused:?}");
    }
    assert_eq!(fixture.refusal(&key.sign(&json!(["iss", ISSUER]))), JwtError::Malformed);

    let filler = |bytes: usize| key.sign(&claims(&json!({ "filler": "x".repeat(bytes) })));
    let base = filler(0).len();
    let largest = (0..).map(|more| filler((JWT_BYTES_MAX - base) * 3 / 4 - more)).find(|it| it.len() <= JWT_BYTES_MAX);
    let largest = largest.expect("a token");
    assert!(largest.len() > JWT_BYTES_MAX - 8 && fixture.verifier.grant(&largest).is_ok(), "{}", largest.len());
    assert_eq!(fixture.refusal(&filler(JWT_BYTES_MAX * 3 / 4)), JwtError::TooLarge);
}

#[test]
fn keys_are_replaced_when_the_file_changes() {
    let (old, new) = (JwtSigningKey::p256("old"), JwtSigningKey::ed25519("new"));
    let fixture = Fixture::new(&[&old]);
    let (by_old, by_new) = (old.sign(&claims(&json!({}))), new.sign(&claims(&json!({}))));
    assert!(fixture.verifier.grant(&by_old).is_ok() && fixture.verifier.grant(&by_new).is_err());
    assert!(!fixture.file.refresh().expect("a file"), "it has not changed");
    let write = |text: &str| std::fs::write(&fixture.path, text).expect("a file");
    write(&jwt_key_set(&[&old, &new]));
    assert!(fixture.file.refresh().expect("a file"));
    assert!(fixture.verifier.grant(&by_old).is_ok() && fixture.verifier.grant(&by_new).is_ok());
    write(&jwt_key_set(&[&new]));
    assert!(fixture.file.refresh().expect("a file"));
    assert_eq!(fixture.refusal(&by_old), JwtError::UnknownKey { id: "old".to_owned() });
    // Another key under the same id.
    let replaced = JwtSigningKey::ed25519("new");
    write(&jwt_key_set(&[&replaced]));
    assert!(fixture.file.refresh().expect("a file"));
    assert_eq!(fixture.refusal(&by_new), JwtError::Signature);
    write("{");
    let error = fixture.file.refresh().expect_err("it is cut off").to_string();
    assert!(error.starts_with("failed to load the key set of JWTs") && error.contains("jwks_uri"), "{error}");
    assert!(fixture.verifier.grant(&replaced.sign(&claims(&json!({})))).is_ok(), "the previous keys stay");
}

#[test]
fn a_key_set_has_keys_that_verify_an_allowed_algorithm() {
    let keys = [JwtSigningKey::rsa("r"), JwtSigningKey::p256("p"), JwtSigningKey::ed25519("e")].map(|key| key.jwk());
    let parse = |keys: &[Value]| JwtKeys::parse(&json!({ "keys": keys }).to_string());
    let with = |at: usize, name: &str, value: Value| {
        let mut key = keys[at].clone();
        key[name] = value;
        key
    };
    let others = [
        json!({ "kty": "oct", "kid": "s", "k": "c2VjcmV0" }),
        json!({ "kty": "EC", "crv": "secp256k1", "kid": "s", "x": "AA", "y": "AA" }),
        json!({ "kty": "OKP", "crv": "X25519", "kid": "s", "x": "AA" }),
        with(0, "use", json!("enc")),
        with(0, "alg", json!("RS512")),
        with(1, "key_ops", json!(["deriveKey"])),
        with(1, "crv", json!("P-384")),
        with(2, "kid", Value::Null),
        json!(5),
    ];
    let with_others: Vec<_> = keys.iter().chain(&others).cloned().collect();
    assert_eq!(parse(&with_others).expect("keys").count(), 3);
    for one in others {
        let error = parse(std::slice::from_ref(&one)).expect_err("no key is left").to_string();
        assert!(error.contains("no key that verifies"), "{one}: {error}");
    }
    for (key, part) in [
        (with(0, "n", json!("AQAB")), "key \"r\": invalid numbers"),
        (with(0, "e", json!("")), "key \"r\": invalid numbers"),
        (with(1, "x", json!("AQAB")), "key \"p\": invalid numbers"),
        (with(2, "x", json!("?")), "key \"e\": invalid numbers"),
        (with(2, "kid", json!("p")), "two keys have the `kid` \"p\""),
    ] {
        let error = parse(&[keys[1].clone(), key]).expect_err("it is invalid").to_string();
        assert!(error.contains(part), "{error}");
    }
    let many: Vec<_> = (0..=JWT_KEYS_MAX).map(|id| with(2, "kid", json!(id.to_string()))).collect();
    assert_eq!(parse(&many[1..]).expect("keys").count(), JWT_KEYS_MAX);
    assert!(parse(&many).expect_err("it is one too many").to_string().contains("at most 256"));
}
