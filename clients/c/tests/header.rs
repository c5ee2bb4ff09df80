//! The header in the repository equals the generated one.

use std::path::Path;

#[test]
fn the_header_matches_the_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("the settings");
    let bindings = cbindgen::Builder::new().with_crate(folder).with_config(config).generate().expect("a header");
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).expect("UTF-8");
    let path = folder.join("include/flash_index.h");
    if std::env::var_os("FLASH_INDEXER_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).expect("the header");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        header == generated,
        "{} differs from the code; run the test with FLASH_INDEXER_UPDATE_HEADER=1 and review the change",
        path.display()
    );
}
