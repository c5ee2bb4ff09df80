//! Time of the service: the clocks of the system, or those of a simulation.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use parking_lot::{Condvar, MutexGuard};

/// Clocks that the threads of a service read, and use for waiting.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The clocks of the system.
    #[default]
    System,
    /// The clocks of a simulation, which runs all threads as steps of one thread: no wait takes time.
    Simulated(Arc<SimulatedTime>),
}

impl Clock {
    /// Present moment of the monotonic clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Simulated(time) => time.start + Duration::from_millis(time.elapsed_ms()),
        }
    }

    /// Present time of the wall clock.
    #[must_use]
    pub fn system_time(&self) -> SystemTime {
        match self {
            Self::System => SystemTime::now(),
            Self::Simulated(time) => SystemTime::UNIX_EPOCH + Duration::from_millis(time.system_ms()),
        }
    }

    /// Waits for a notification until `deadline`, or without an end. Returns whether the deadline has passed. In a simulation
    /// it has passed at once.
    pub fn wait<T>(&self, waker: &Condvar, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> bool {
        match (self, deadline) {
            (Self::Simulated(_), _) => true,
            (Self::System, Some(deadline)) => waker.wait_until(guard, deadline).timed_out(),
            (Self::System, None) => {
                waker.wait(guard);
                false
            }
        }
    }

    /// Waits for a message until `deadline`, or without an end. In a simulation the deadline has passed at once.
    ///
    /// # Errors
    ///
    /// When the deadline has passed, or the sender is dropped.
    pub fn receive<T>(&self, receiver: &Receiver<T>, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        match (self, deadline) {
            (Self::Simulated(_), _) => receiver.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            (Self::System, Some(deadline)) => receiver.recv_deadline(deadline),
            (Self::System, None) => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }
}

/// Time of a simulation. It passes only when the simulation advances it.
#[derive(Debug)]
pub struct SimulatedTime {
    start: Instant,
    elapsed_ms: AtomicU64,
    /// Time of the wall clock, in milliseconds since the Unix epoch.
    system_ms: AtomicU64,
}

impl SimulatedTime {
    /// Time that starts now, with this wall clock in milliseconds since the Unix epoch.
    #[must_use]
    pub fn starting_at(system_ms: u64) -> Arc<Self> {
        let elapsed_ms = AtomicU64::new(0);
        Arc::new(Self { start: Instant::now(), elapsed_ms, system_ms: AtomicU64::new(system_ms) })
    }

    /// Advances the time.
    pub fn advance_ms(&self, milliseconds: u64) {
        self.elapsed_ms.fetch_add(milliseconds, Relaxed);
        self.system_ms.fetch_add(milliseconds, Relaxed);
    }

    /// Sets the wall clock forwards or backwards, as an operator or a time service does.
    pub fn step_system_ms(&self, milliseconds: i64) {
        let stepped = self.system_ms.load(Relaxed).saturating_add_signed(milliseconds);
        self.system_ms.store(stepped, Relaxed);
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn elapsed_ms(&self) -> u64 {
        self.elapsed_ms.load(Relaxed)
    }

    /// Wall clock in milliseconds since the Unix epoch.
    #[must_use]
    pub fn system_ms(&self) -> u64 {
        self.system_ms.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn simulated_time_passes_only_when_it_is_advanced_and_no_wait_takes_any() {
        let time = SimulatedTime::starting_at(5_000);
        let clock = Clock::Simulated(Arc::clone(&time));
        let (start, (waker, lock)) = (clock.now(), (Condvar::new(), Mutex::new(())));
        assert!(clock.wait(&waker, &mut lock.lock(), None));
        let (sender, receiver) = bounded::<u8>(1);
        let late = Some(start + Duration::from_secs(3_600));
        assert_eq!(clock.receive(&receiver, late), Err(RecvTimeoutError::Timeout));
        drop(sender);
        assert_eq!(clock.receive(&receiver, None), Err(RecvTimeoutError::Disconnected));
        assert_eq!(clock.now(), start);
        time.advance_ms(250);
        time.step_system_ms(-1_000);
        assert_eq!(clock.now(), start + Duration::from_millis(250));
        assert_eq!(clock.system_time(), SystemTime::UNIX_EPOCH + Duration::from_millis(4_250));
    }
}
