//! HTTP on accepted connections.

use std::future::Future;
use std::pin::pin;

use axum::Router;
use axum::serve::Listener as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tower::Service as _;
use tracing::trace;

use super::polled_again::PolledAgain;
use super::{BoundedListener, ConnectionHandle};

/// Serves HTTP with a task for each connection until `stopped` ends, and then until the requests that have begun are answered.
///
/// In contrast to `axum::serve`, a connection's task is [polled again](PolledAgain) when it wakes itself for its only request, and no
/// connection is upgraded to another protocol.
pub async fn serve(mut listener: BoundedListener, router: Router, stopped: impl Future<Output = ()>) {
    let mut services = router.into_make_service_with_connect_info::<ConnectionHandle>();
    let open = GracefulShutdown::new();
    let mut stopped = pin!(stopped);
    loop {
        let connection = tokio::select! {
            (connection, _) = listener.accept() => connection,
            () = &mut stopped => break,
        };
        let Ok(service) = services.call(&connection).await;
        let (watcher, handle) = (open.watcher(), connection.handle());
        tokio::spawn(async move {
            let builder = Builder::new(TokioExecutor::new());
            let serving = builder.serve_connection(TokioIo::new(connection), TowerToHyperService::new(service));
            if let Err(error) = PolledAgain::new(watcher.watch(serving), || handle.request_counts()).await {
                trace!(%error, "connection failed");
            }
        });
    }
    // Connections wait for a slot no longer.
    drop(listener);
    open.shutdown().await;
}
