//! The token file: its format, its errors, and its reload.

use flash_indexer_access::{AccessError, FileContent, NewToken, Scope, TOKENS_MAX, TokenFile, Tokens};

/// SHA-256 of `secret`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

fn entry(rest: &str) -> String {
    format!("[[token]]\nname = \"router\"\nsha256 = \"{SECRET}\"\n{rest}\n")
}

#[test]
fn a_token_grants_its_scopes_for_its_tenants() {
    let tokens = Tokens::parse(&entry("scopes = [\"query\", \"events\"]\ntenants = [\"a\", \"b\"]")).expect("tokens");
    let grant = tokens.grant("secret").expect("it is in the file");
    assert_eq!(grant.name(), "router");
    assert!(grant.check(Scope::Query).is_ok() && grant.check(Scope::Events).is_ok());
    let denied = grant.check(Scope::Admin).expect_err("it lacks the scope");
    assert!(denied.to_string().contains("\"router\" lacks the scope `admin`"), "{denied}");
    assert!(grant.check_tenant("a").is_ok() && grant.check_tenant("b").is_ok());
    let denied = grant.check_tenant("c").expect_err("it does not permit this tenant");
    assert_eq!((denied.as_str(), denied.is_unauthenticated()), ("tenant", false));
    assert!(denied.to_string().contains("does not permit tenant \"c\""), "{denied}");
    assert!(grant.check_all_tenants().is_err());
}

#[test]
fn a_token_without_tenants_permits_all() {
    let tokens = Tokens::parse(&entry("scopes = [\"admin\"]")).expect("tokens");
    let grant = tokens.grant("secret").expect("it is in the file");
    assert!(grant.check_tenant("any").is_ok() && grant.check_all_tenants().is_ok());
    assert!(grant.check(Scope::Query).is_err(), "a scope does not include another");
}

#[test]
fn every_token_of_a_file_is_found_and_no_other() {
    let made: Vec<_> = (0..TOKENS_MAX).map(|_| NewToken::generate().expect("random bytes")).collect();
    let entries = made.iter().enumerate().map(|(at, token)| token.entry(&format!("t{at}"), &[Scope::Query], &[]));
    let tokens = Tokens::parse(&entries.collect::<String>()).expect("tokens");
    for (at, token) in made.iter().enumerate() {
        assert_eq!(tokens.grant(token.secret()).expect("it is in the file").name(), format!("t{at}"));
    }
    for other in ["", "secret", &made[0].secret()[1..], &"x".repeat(513), SECRET] {
        assert_eq!(tokens.grant(other), Err(AccessError::UnknownToken), "{other}");
    }
}

#[test]
fn the_entry_of_a_new_token_quotes_its_texts() {
    let token = NewToken::generate().expect("random bytes");
    let (name, tenant) = ("a \"name\"\\", "é\"]");
    let text = token.entry(name, &[Scope::Query, Scope::Admin], &[tenant.to_owned()]);
    let tokens = Tokens::parse(&text).expect("tokens");
    let grant = tokens.grant(token.secret()).expect("it is in the file");
    assert_eq!(grant.name(), name);
    assert!(grant.permits_tenant(tenant) && !grant.permits_tenant("é"));
    assert!(!text.contains(token.secret()) && !format!("{token:?}").contains(token.secret()));
}

#[test]
fn an_invalid_file_is_refused_with_its_reason() {
    let many = (0..=TOKENS_MAX).map(|at| entry("scopes = [\"query\"]").replace("2bb8", &format!("{at:04x}")));
    for (text, says) in [
        (String::new(), "has no token"),
        (many.collect(), "at most 1024"),
        ("nonsense".to_owned(), "invalid file"),
        (entry("scopes = [\"root\"]"), "line 4: unknown value, expected one of `query`, `events`, `admin`"),
        (entry("scopes = [\"fidx_secret\"]"), "line 4: unknown value"),
        ("fidx_secret = 1\n".to_owned() + &entry("scopes = []"), "line 1: unknown field, expected `token`"),
        (entry("scopes = [\"query\"]\nfidx_secret = 1"), "line 5: unknown field, expected one of `name`, `sha256`"),
        (entry("scopes = [\"query\"]") + "[[fidx_secret]]\n", "line 5: unknown field, expected `token`"),
        ("fidx_secret = 1\nfidx_secret = 2\n".to_owned(), "line 2: duplicate key"),
        ("fidx_secret = 1\nfidx_secret.a = 2\n".to_owned(), "line 2: a dotted key"),
        (entry("scopes = [\"query\"]\ntenant = \"a\""), "line 5: unknown field, expected one of"),
        (entry(""), "missing field `scopes`"),
        ("fidx_secret\n".to_owned() + &entry("scopes = []"), "line 1: "),
        (entry("scopes = \"fidx_secret\""), "line 4: a value is of the wrong type"),
        (entry("scopes = []"), "scopes must not be empty"),
        (entry("scopes = [\"query\"]").replace("router", " "), "a token's name is empty"),
        (entry("scopes = [\"query\"]").replace("router", &"r".repeat(600)), "a token's name has 600 bytes"),
        (entry("scopes = [\"query\"]\ntenants = []"), "tenants must not be empty"),
        (entry("scopes = [\"query\"]\ntenants = [\"a\\nb\"]"), "control character"),
        (entry("scopes = [\"query\"]\ntenants = [\"\"]"), "a tenant must not be empty"),
        (entry("scopes = [\"query\"]").replace("2bb8", "zzzz"), "64 hexadecimal digits"),
        (entry("scopes = [\"query\"]").replace("2bb8", "2"), "64 hexadecimal digits"),
        (entry("scopes = [\"query\"]").repeat(2), "the same sha256"),
    ] {
        let error = Tokens::parse(&text).expect_err(says);
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn a_changed_file_is_in_force_and_a_broken_one_is_not() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("tokens.toml");
    let error = TokenFile::load(&path).expect_err("it does not exist");
    assert!(error.to_string().contains("flash-indexer token"), "{error}");

    std::fs::write(&path, entry("scopes = [\"query\"]")).expect("a file");
    let file = TokenFile::load(&path).expect("it is valid");
    assert!(file.grant("secret").is_ok());
    assert!(!file.refresh().expect("it is valid"), "it has not changed");

    std::fs::write(&path, "nonsense").expect("a file");
    assert!(file.refresh().is_err());
    assert!(file.grant("secret").is_ok(), "the previous tokens stay in force");

    std::fs::write(&path, entry("scopes = [\"query\"]").replace("2bb8", "2bb9")).expect("a file");
    assert!(file.refresh().expect("it is valid"));
    assert_eq!(file.grant("secret"), Err(AccessError::UnknownToken), "the token was revoked");
    assert_eq!(file.token_count(), 1);
}
