//! Permits that clients share fairly: a semaphore whose waiting clients take turns.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

/// A number of permits, and a limited queue for them.
///
/// # Fairness
///
/// A free permit goes to the client whose turn it is: each client that waits gets one permit before another one gets its
/// second. A client may have at most as many waiters as the queue has room left, so one client alone fills half of it, and
/// two fill a third each.
#[derive(Debug)]
pub struct FairSemaphore {
    permits: usize,
    waiters_max: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    used: usize,
    waiters: usize,
    /// Clients with waiters, in the order of their turns.
    turns: VecDeque<IpAddr>,
    by_client: FxHashMap<IpAddr, VecDeque<oneshot::Sender<Permit>>>,
}

/// The client has its part of the queue.
#[derive(Debug)]
pub struct QueueFull;

/// A permit, given to the next waiter when it is dropped.
#[derive(Debug)]
pub struct Permit(Arc<FairSemaphore>);

impl FairSemaphore {
    /// A semaphore with this number of permits and at most `waiters_max` waiters.
    #[must_use]
    pub fn new(permits: usize, waiters_max: usize) -> Arc<Self> {
        Arc::new(Self { permits, waiters_max, queue: Mutex::default() })
    }

    /// Waits for a permit. Dropping the future ends the wait.
    pub async fn acquire(self: &Arc<Self>, client: IpAddr) -> Result<Permit, QueueFull> {
        let mut waiting = {
            let mut queue = self.queue.lock();
            if queue.used < self.permits {
                queue.used += 1;
                return Ok(Permit(Arc::clone(self)));
            }
            let of_client = queue.by_client.get(&client).map_or(0, VecDeque::len);
            if of_client >= self.waiters_max - queue.waiters {
                return Err(QueueFull);
            }
            PermitWait { semaphore: self, client, permit: queue.push(client) }
        };
        Ok((&mut waiting.permit).await.expect("a waiter leaves the queue with a permit, or when it is dropped"))
    }

    /// Number of permits in use, and of waiters.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn occupied(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.used, queue.waiters)
    }
}

impl Queue {
    fn push(&mut self, client: IpAddr) -> oneshot::Receiver<Permit> {
        let (permit, receiver) = oneshot::channel();
        self.waiters += 1;
        let of_client = self.by_client.entry(client).or_default();
        if of_client.is_empty() {
            self.turns.push_back(client);
        }
        of_client.push_back(permit);
        receiver
    }

    /// Takes the first waiter of the client whose turn it is.
    fn pop(&mut self) -> Option<oneshot::Sender<Permit>> {
        let client = self.turns.pop_front()?;
        let of_client = self.by_client.get_mut(&client).expect("a client with a turn waits");
        let waiter = of_client.pop_front();
        if of_client.is_empty() {
            self.by_client.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.waiters -= 1;
        waiter
    }

    /// Removes the waiters of a client that have ended.
    fn remove_ended(&mut self, client: IpAddr) {
        let Some(of_client) = self.by_client.get_mut(&client) else { return };
        let before = of_client.len();
        of_client.retain(|waiter| !waiter.is_closed());
        self.waiters -= before - of_client.len();
        if of_client.is_empty() {
            self.by_client.remove(&client);
            self.turns.retain(|turn| *turn != client);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.queue.lock();
            let next = queue.pop();
            if next.is_none() {
                queue.used -= 1;
            }
            next
        };
        if let Some(next) = next {
            // A waiter that ended meanwhile returns the permit, whose drop gives it to the next one.
            drop(next.send(Self(Arc::clone(&self.0))));
        }
    }
}

/// Wait for a permit; leaves the queue when it is dropped.
struct PermitWait<'p> {
    semaphore: &'p FairSemaphore,
    client: IpAddr,
    permit: oneshot::Receiver<Permit>,
}

impl Drop for PermitWait<'_> {
    fn drop(&mut self) {
        self.permit.close();
        self.semaphore.queue.lock().remove_ended(self.client);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Acquiring<'p> = Pin<Box<dyn Future<Output = Result<Permit, QueueFull>> + 'p>>;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    fn poll(waiter: &mut Acquiring<'_>) -> Poll<Result<Permit, QueueFull>> {
        waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A waiter of a client that has joined the queue.
    fn wait(permits: &Arc<FairSemaphore>, number: u8) -> Acquiring<'_> {
        let mut waiter: Acquiring<'_> = Box::pin(permits.acquire(client(number)));
        assert!(poll(&mut waiter).is_pending(), "there is no permit, and the queue has room");
        waiter
    }

    fn is_refused(permits: &Arc<FairSemaphore>, number: u8) -> bool {
        let mut waiter: Acquiring<'_> = Box::pin(permits.acquire(client(number)));
        matches!(poll(&mut waiter), Poll::Ready(Err(QueueFull)))
    }

    fn permit(permits: &Arc<FairSemaphore>) -> Permit {
        let mut waiter: Acquiring<'_> = Box::pin(permits.acquire(client(0)));
        let Poll::Ready(Ok(permit)) = poll(&mut waiter) else { panic!("a permit is free") };
        permit
    }

    #[test]
    fn clients_take_turns_whatever_the_number_of_their_waiters() {
        let permits = FairSemaphore::new(1, 100);
        let mut permit = permit(&permits);
        let mut waiters: Vec<_> = (0..6).map(|_| (1, wait(&permits, 1))).collect();
        waiters.extend([(2, wait(&permits, 2)), (2, wait(&permits, 2)), (3, wait(&permits, 3))]);
        let mut order = Vec::new();
        while !waiters.is_empty() {
            drop(permit);
            let mut given = Vec::new();
            waiters.retain_mut(|(number, waiter)| match poll(waiter) {
                Poll::Pending => true,
                Poll::Ready(got) => {
                    given.push((*number, got.expect("a permit")));
                    false
                }
            });
            let Some((number, got)) = given.pop() else { panic!("the permit was given to none") };
            assert!(given.is_empty(), "there is one permit");
            order.push(number);
            permit = got;
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1, 1, 1, 1]);
        drop(permit);
        assert_eq!(permits.occupied(), (0, 0));
    }

    #[test]
    fn a_client_has_as_many_waiters_as_there_is_room_left() {
        let permits = FairSemaphore::new(2, 12);
        let _permits = [permit(&permits), permit(&permits)];
        let mut first: Vec<_> = (0..6).map(|_| wait(&permits, 1)).collect();
        assert!(is_refused(&permits, 1), "half of the queue");
        let second: Vec<_> = (0..3).map(|_| wait(&permits, 2)).collect();
        assert!(is_refused(&permits, 2), "as many as there is room left");
        let _third = wait(&permits, 3);
        drop(second);
        assert!(is_refused(&permits, 1), "it has six, and there is room for five");
        first.pop();
        first.push(wait(&permits, 1));
        assert!(is_refused(&permits, 1));
        assert_eq!(permits.occupied(), (2, 7));
    }

    #[test]
    fn a_waiter_that_ends_gives_its_place_to_the_next_one() {
        let permits = FairSemaphore::new(1, 12);
        let first = permit(&permits);
        let (ended, given, mut last) = (wait(&permits, 1), wait(&permits, 2), wait(&permits, 3));
        drop(ended);
        drop(first);
        // The permit was sent to it, and it has not received it.
        drop(given);
        let Poll::Ready(Ok(got)) = poll(&mut last) else { panic!("the permit was lost") };
        drop(got);
        assert_eq!(permits.occupied(), (0, 0));
        assert!(permits.queue.lock().by_client.is_empty() && permits.queue.lock().turns.is_empty());
    }
}
