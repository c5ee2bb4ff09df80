//! Sockets with CURVE, and the admission of clients.

use std::path::PathBuf;
use std::sync::Arc;

use tracing::debug;

use crate::keys::{KeyError, KeyPair, PublicKey};
use crate::lists::{ClientKeys, ListError, ServerKeys};
use crate::reloaded::{CurveFileError, ReloadedFile};

/// Endpoint at which libzmq requests the admission of a client: the ZeroMQ Authentication Protocol (ZAP), RFC 27.
const ZAP_ENDPOINT: &str = "inproc://zeromq.zap.01";
const ZAP_VERSION: &[u8] = b"1.0";

/// Files of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurveFiles {
    /// Certificate with the key pair of this process.
    pub key: PathBuf,
    /// List of the servers' public keys, for sockets that are clients.
    pub servers: Option<PathBuf>,
    /// List of the admitted clients' public keys, for sockets that are servers.
    pub clients: Option<PathBuf>,
}

/// Keys of the sockets of a process. Every file is read again before each use.
#[derive(Debug)]
pub struct Curve {
    key: ReloadedFile<KeyPair, KeyError>,
    servers: Option<ReloadedFile<ServerKeys, ListError>>,
    clients: Option<ReloadedFile<ClientKeys, ListError>>,
}

impl Curve {
    /// Loads the files.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or is malformed.
    pub fn load(files: &CurveFiles) -> Result<Self, CurveFileError> {
        let servers = |path| ReloadedFile::load("list of CURVE server keys", path, ServerKeys::parse);
        let clients = |path| ReloadedFile::load("list of CURVE client keys", path, ClientKeys::parse);
        Ok(Self {
            key: ReloadedFile::load("CURVE key pair", &files.key, KeyPair::parse)?,
            servers: files.servers.as_deref().map(servers).transpose()?,
            clients: files.clients.as_deref().map(clients).transpose()?,
        })
    }

    /// Makes a socket a client of the server at an endpoint, before it connects. Returns false, and leaves the socket as it
    /// is, if the server has no key in the list. A client of CURVE refuses a server without CURVE.
    ///
    /// # Errors
    ///
    /// When libzmq refuses an option.
    pub fn secure_client(&self, socket: &zmq::Socket, endpoint: &str) -> zmq::Result<bool> {
        let server = self.servers.as_ref().and_then(|servers| servers.current().of_endpoint(endpoint));
        let Some(server) = server else { return Ok(false) };
        let own = self.key.current();
        socket.set_curve_serverkey(&server.0)?;
        socket.set_curve_publickey(&own.public().0)?;
        socket.set_curve_secretkey(own.secret())?;
        Ok(true)
    }

    /// Makes a socket a server, before it is bound. Its context needs an [`Admission`]. Returns false, and leaves the socket as
    /// it is, without a list of clients.
    ///
    /// # Errors
    ///
    /// When libzmq refuses an option.
    pub fn secure_server(&self, socket: &zmq::Socket) -> zmq::Result<bool> {
        if self.clients.is_none() {
            return Ok(false);
        }
        socket.set_curve_server(true)?;
        socket.set_curve_secretkey(self.key.current().secret())?;
        Ok(true)
    }

    /// Admits the clients of all servers of a context; none without a list of clients. Call it before a server is bound:
    /// otherwise libzmq admits every client of the context.
    ///
    /// # Errors
    ///
    /// When the context has one already, or libzmq refuses a socket.
    pub fn admission(self: &Arc<Self>, context: &zmq::Context) -> zmq::Result<Option<Admission>> {
        if self.clients.is_none() {
            return Ok(None);
        }
        let socket = context.socket(zmq::REP)?;
        socket.set_linger(0)?;
        socket.bind(ZAP_ENDPOINT)?;
        Ok(Some(Admission { socket, curve: Arc::clone(self) }))
    }
}

/// The socket at which libzmq requests the admission of clients. Handshakes wait until [`Admission::answer`] is called.
pub struct Admission {
    socket: zmq::Socket,
    curve: Arc<Curve>,
}

impl Admission {
    /// Readable when a client waits.
    pub fn poll_item(&self) -> zmq::PollItem<'_> {
        self.socket.as_poll_item(zmq::POLLIN)
    }

    /// Answers every waiting request.
    pub fn answer(&self) {
        while let Ok(request) = self.socket.recv_multipart(zmq::DONTWAIT) {
            let id = request.get(1).map_or(&b""[..], Vec::as_slice);
            let (status, text): (&[u8], &[u8]) =
                if self.admits(&request) { (b"200", b"OK") } else { (b"400", b"key not admitted") };
            let reply = [ZAP_VERSION, id, status, text, b"", b""];
            if let Err(error) = self.socket.send_multipart(reply, zmq::DONTWAIT) {
                debug!(%error, "failed to answer an authentication request");
            }
        }
    }

    /// Whether a request is of a client in the list. The frames are version, id, domain, address, identity, mechanism and
    /// the public key.
    fn admits(&self, request: &[Vec<u8>]) -> bool {
        let [version, _, _, address, _, mechanism, key] = request else { return false };
        let Ok(key) = <[u8; 32]>::try_from(key.as_slice()) else { return false };
        let clients = self.curve.clients.as_ref().filter(|_| version == ZAP_VERSION && mechanism == b"CURVE");
        let is_admitted = clients.is_some_and(|clients| clients.current().admit(&PublicKey(key)));
        if !is_admitted {
            let address = String::from_utf8_lossy(address);
            debug!(key = %PublicKey(key), %address, "refused a client whose key is not in the list");
        }
        is_admitted
    }
}
