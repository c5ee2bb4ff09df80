//! `flash-indexer curve-key`: a new CURVE key pair.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use flash_indexer_curve::KeyPair;

/// Make a CURVE key pair, which encrypts and authenticates ZeroMQ.
///
/// The pair is written to NAME.key_secret, which only its owner can read, and the public key alone to NAME.key. The public key is
/// also printed, for the lists of --curve-server-keys and --curve-clients. No file is replaced.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer curve-key indexer
  flash-indexer curve-key relay-gpu-1 | sed 's/$/ gpu-1/' >> server-keys

The files have the format of libzmq's bindings, such as pyzmq's zmq.auth.load_certificate.")]
pub(crate) struct CurveKeyArguments {
    /// Name of the files, with their folder.
    name: PathBuf,
}

pub(crate) fn run(arguments: &CurveKeyArguments) -> Result<()> {
    let pair = KeyPair::generate()?;
    write(&arguments.name, "key_secret", SECRET_MODE, &pair.secret_certificate())?;
    write(&arguments.name, "key", PUBLIC_MODE, &pair.public_certificate())?;
    println!("{}", pair.public());
    Ok(())
}

const SECRET_MODE: u32 = 0o600;
const PUBLIC_MODE: u32 = 0o644;

fn write(name: &Path, extension: &str, mode: u32, text: &str) -> Result<()> {
    let mut path = name.to_owned().into_os_string();
    path.push(format!(".{extension}"));
    let path = PathBuf::from(path);
    let failed = || format!("failed to write {}; choose another name, or remove the file", path.display());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)
}
