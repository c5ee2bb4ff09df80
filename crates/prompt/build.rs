//! Compiles the messages of the tokenizer service: the client for the crate, the server for its tests.

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/tokenization.proto");
    let descriptors = protox::compile(["tokenization.proto"], ["../../proto"])?;
    for (side, is_client) in [("client", true), ("server", false)] {
        let folder = PathBuf::from(env::var("OUT_DIR")?).join(side);
        fs::create_dir_all(&folder)?;
        let builder = tonic_prost_build::configure().build_client(is_client).build_server(!is_client);
        builder.build_transport(false).out_dir(folder).compile_fds(descriptors.clone())?;
    }
    Ok(())
}
