//! Compiles the gRPC services: the server's side for the crate, the client's for its tests, and their description for
//! reflection.

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["indexer.proto", "router.proto"];
    for file in files {
        println!("cargo::rerun-if-changed=../../proto/{file}");
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["../../proto"])?;
    compiler.include_source_info(true).include_imports(true).open_files(files)?;
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    for (side, is_client) in [("client", true), ("server", false)] {
        let folder = out.join(side);
        fs::create_dir_all(&folder)?;
        let builder = tonic_prost_build::configure().build_client(is_client).build_server(!is_client);
        builder.build_transport(false).out_dir(folder).compile_fds(compiler.file_descriptor_set())?;
    }
    Ok(())
}
