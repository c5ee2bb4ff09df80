//! The generated code equals what `proto/` generates.

use std::path::Path;
use std::{env, fs};

/// Set by `scripts/update-proto`: the generated code is written instead of compared.
const UPDATE: &str = "FLASH_INDEXER_UPDATE_PROTO";

/// Generates the code of all services into a folder.
fn generate(folder: &Path) {
    let mut compiler = compiler(&["indexer.proto", "router.proto"]);
    fs::write(folder.join("descriptors.bin"), compiler.encode_file_descriptor_set()).expect("written");
    // The program calls the tokenizer service and the servers of engines. No descriptor is needed for them.
    compiler
        .open_files(["tokenization.proto", "engine_events.proto", "vllm_control.proto"])
        .expect("valid definitions");
    let builder = || tonic_prost_build::configure().build_transport(false).out_dir(folder);
    builder().compile_fds(compiler.file_descriptor_set()).expect("generated");
    // Only Envoy calls the endpoint picker.
    let called_by_envoy = self::compiler(&["ext_proc.proto"]).file_descriptor_set();
    builder().build_client(false).compile_fds(called_by_envoy).expect("generated");
}

fn compiler(files: &[&str]) -> protox::Compiler {
    let mut compiler = protox::Compiler::new(["../../proto"]).expect("the folder of the definitions");
    compiler.include_source_info(true).include_imports(true).open_files(files).expect("valid definitions");
    compiler
}

#[test]
fn the_generated_code_is_current() {
    let generated = tempfile::tempdir().expect("a folder");
    generate(generated.path());
    let committed = Path::new("src/generated");
    let mut files = 0;
    for entry in fs::read_dir(generated.path()).expect("generated files") {
        let name = entry.expect("a file").file_name();
        let wanted = fs::read(generated.path().join(&name)).expect("a file");
        let path = committed.join(&name);
        if env::var_os(UPDATE).is_some() {
            fs::write(&path, &wanted).expect("written");
        }
        let is_current = fs::read(&path).is_ok_and(|found| found == wanted);
        assert!(is_current, "{} is not what proto/ generates: run scripts/update-proto", path.display());
        files += 1;
    }
    assert_eq!(files, fs::read_dir(committed).expect("the folder").count(), "a committed file is not generated");
}
